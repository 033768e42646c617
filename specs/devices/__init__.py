"""What the hardware can do, one TOML file a device, each number with its source."""
