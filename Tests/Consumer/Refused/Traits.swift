// Lines that the compiler refuses because a trait is not enabled: the error names the trait that is needed, which the
// comment at the end of the line repeats. Checked by scripts/consumer, which builds without any trait.
import Coroutine
import CoroutineHTTP
import CoroutineLogging
import CoroutineMetrics
import CoroutineNIO
import CoroutinePostgres
import CoroutineServiceLifecycle
import CoroutineWork

struct Future {}
struct Loop {}

func wait(_ future: Future) throws {
  try co_await(future)  // needs NIO
}

func read(_ channel: NIOCoroutineChannel<Int, Int>) {}  // needs NIO

func wrap(_ loop: Loop) throws {
  _ = try NIOCoroutineChannel<Int, Int>(wrapping: loop)  // needs NIO
}

func future(_ job: Job<Int>, _ loop: Loop) {
  job.future(on: loop)  // needs NIO
}

func ask(_ client: HTTPClient) {}  // needs HTTP

func bootstrap() {
  _ = Logger.MetadataProvider.coroutine  // needs Logging
}

func report() {
  _ = RuntimeReporter.self  // needs Metrics
}

func query(_ db: PostgresPool) {}  // needs Postgres

func work() {
  _ = Work.self  // needs Postgres
}

func serve() {
  _ = CoroutineService("name") {}  // needs ServiceLifecycle
}
