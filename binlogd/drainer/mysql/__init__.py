"""The downstream MySQL, MariaDB or TiDB: connections, lanes that apply, and what is kept there."""
