"""What the container runs: `tidemill` with the arguments. With the single argument `executor`, which
Spark gives to the pods that it starts on Kubernetes: an executor of Spark, as the pod's variables say."""

from __future__ import annotations

import os
import sys
from pathlib import Path

EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
OPTION = "SPARK_JAVA_OPT_"


def executor() -> list[str]:
    """The command, from the variables that Spark sets in the pod."""
    import pyspark

    from tidemill.query.java import find_java

    told = os.environ
    options = sorted((int(name.removeprefix(OPTION)), told[name]) for name in told if name.startswith(OPTION))
    memory = told["SPARK_EXECUTOR_MEMORY"]
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    return [
        str(find_java().home / "bin" / "java"),
        *(option for _, option in options),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join(filter(None, [told.get("SPARK_CONF_DIR"), told.get("SPARK_EXTRA_CLASSPATH"), str(jars)])),
        EXECUTOR,
        *("--driver-url", told["SPARK_DRIVER_URL"]),
        *("--executor-id", told["SPARK_EXECUTOR_ID"]),
        *("--cores", told["SPARK_EXECUTOR_CORES"]),
        *("--app-id", told["SPARK_APPLICATION_ID"]),
        *("--hostname", told["SPARK_EXECUTOR_POD_IP"]),
        *("--resourceProfileId", told["SPARK_RESOURCE_PROFILE_ID"]),
        *("--podName", told["SPARK_EXECUTOR_POD_NAME"]),
    ]


def main() -> None:
    tidemill = str(Path(sys.executable).parent / "tidemill")
    command = executor() if sys.argv[1:] == ["executor"] else [tidemill, *sys.argv[1:]]
    # In the place of this process: signals reach it.
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
