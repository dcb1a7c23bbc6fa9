"""The Spark session as a Dagster resource: lazily started, typed, ended with the run."""

from pathlib import Path
from typing import TYPE_CHECKING

from dagster import ConfigurableResource, InitResourceContext
from pydantic import PrivateAttr

from lockstep.settings import load_settings
from lockstep.spark.shutdown import end_jobs, stop_context

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


class SparkResource(ConfigurableResource["SparkSession"]):
    """Wraps dagster-pyspark's lazy resource, with lockstep's checked jars and properties.

    dagster-pyspark imports pyspark when it is loaded, and would silently keep a session of another
    configuration: so the first use imports it, after the checks of `prepare_session`.
    Master, memory and properties are those of the settings. A run takes none of them from its configuration, which
    anybody who launches runs may write.
    """

    _context: "SparkContext | None" = PrivateAttr(default=None)

    def session(self, name: str, import_roots: tuple[Path, ...] = ()) -> "SparkSession":
        """Start the session of this run, or return the running one. Never call it on the main thread.

        Args:
            name: The application's name in the Spark UI.
            import_roots: Folders from which executors import the user's stream modules.

        Raises:
            EnvironmentProblem: This process cannot start the session.
        """
        from dagster_pyspark import LazyPySparkResource

        from lockstep.spark.gateway import start_gateway
        from lockstep.spark.session import prepare_session

        settings = load_settings()
        properties = prepare_session(settings.spark, import_roots=import_roots, tables=settings.table_root)
        config = {**properties, "spark.app.name": name}
        start_gateway(config)
        session: SparkSession = LazyPySparkResource(spark_config=config).spark_session
        self._context = session.sparkContext
        return session

    def context(self, name: str, import_roots: tuple[Path, ...] = ()) -> "SparkContext":
        """Start Spark without SQL, which a stream does not need. Otherwise as `session`."""
        from lockstep.spark.session import start_context

        settings = load_settings()
        tables = settings.table_root  # a check in the same process uses the same Spark
        self._context = start_context(settings.spark, name, import_roots=import_roots, tables=tables)
        return self._context

    def cancel(self, group: str | None = None) -> None:
        """End the session's jobs, or those of a job group, by force if necessary."""
        if self._context is not None:
            end_jobs(self._context, group)

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Stop the session; the JVM ends with this process."""
        del context
        if self._context is not None:
            stop_context(self._context)
        self._context = None
