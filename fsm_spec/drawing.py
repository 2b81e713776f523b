def svg(table):
    return ""
