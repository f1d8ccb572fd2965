// A program with the trait Postgres, which scripts/consumer builds in a package of its own. There is no server.
import Coroutine
import CoroutinePostgres
import CoroutineWork

co_main {
  var options = PostgresPool.Options()
  options.acquireTimeout = .milliseconds(100)
  let db = try PostgresPool("host=/nowhere dbname=none", options: options)
  let queue = WorkQueue<Int>("numbers", on: db)
  do { print(try queue.counts()) } catch let error as PostgresError { print("postgres: \(error.kind)") }
}
