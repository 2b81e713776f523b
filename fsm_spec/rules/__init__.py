"""The rules a spec must keep, a file each; every fault is a finding with its line."""
