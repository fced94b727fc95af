-- What binlogd needs downstream, and nothing more. First a user, with a password of your own:
--
--   CREATE USER 'binlogd'@'%' IDENTIFIED BY '...';
--
-- then `mariadb < deploy/grants.sql`, or `mysql < deploy/grants.sql`. MariaDB from 10.6 and MySQL from 5.7.
-- Rows, tables, views, and the schemas that TiDB makes:
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, REFERENCES, CREATE VIEW, SHOW VIEW
  ON *.* TO 'binlogd'@'%';
-- to make a view in the name of whoever made it upstream, as TiDB says for each, be it a user here or not; MySQL 8.0 calls it SET_USER_ID:
/*M!100502 GRANT SET USER ON *.* TO 'binlogd'@'%' */;
/*!80200 GRANT SET_ANY_DEFINER, ALLOW_NONEXISTENT_DEFINER ON *.* TO 'binlogd'@'%' */;
-- to see that a table has triggers, which its rows are written differently for:
GRANT TRIGGER ON *.* TO 'binlogd'@'%';
-- to tell whether a DDL that was interrupted has swapped two tables, and whether it is still at work:
GRANT PROCESS ON *.* TO 'binlogd'@'%';
-- to note the position in the downstream's own binlog beside a checkpoint:
GRANT REPLICATION CLIENT ON *.* TO 'binlogd'@'%';

-- *.* holds mysql.* as well. Where the schemas are known, say so instead: the first two grants ON `shop`.*, and on
-- `tidb_binlog`.* (the checkpoint) and drainer.trash-schema. PROCESS and REPLICATION CLIENT go with *.* only.
