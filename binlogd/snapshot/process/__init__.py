"""The child process with its Spark session: found, started, kept warm, told and watched."""
