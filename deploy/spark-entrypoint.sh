#!/bin/sh
# The first process of the image with Spark. Spark on Kubernetes calls it with `driver` or `executor`, in the words of
# Spark's own image (resource-managers/kubernetes/docker/src/main/dockerfiles/spark/entrypoint.sh); all else is binlogd's.
set -e
SPARK_HOME=${SPARK_HOME:-/opt/spark}
export SPARK_HOME

case "$1" in
driver)
    shift
    exec "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client "$@"
    ;;
executor)
    shift
    classpath="${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$SPARK_CLASSPATH:$SPARK_HOME/jars/*:$PWD"
    set -- \
        "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classpath" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME" "$@"
    # SPARK_JAVA_OPT_0, _1, ... each one word of the command line, before the others
    count=0
    while eval "[ -n \"\${SPARK_JAVA_OPT_$count+set}\" ]"; do count=$((count + 1)); done
    while [ "$count" -gt 0 ]; do
        count=$((count - 1))
        eval "set -- \"\$SPARK_JAVA_OPT_$count\" \"\$@\""
    done
    exec java "$@"
    ;;
*)
    unset SPARK_HOME
    exec binlogd "$@"
    ;;
esac
