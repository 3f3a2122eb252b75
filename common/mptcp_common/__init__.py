"""What proxy, throttler and bench read and print alike: units, YAML documents, problems by file and line."""
