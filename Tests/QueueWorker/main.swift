// A program that works a queue, until it is killed, or its standard input ends: that of tests which have died. The
// tests of CoroutineWork start it.
//
//   QueueWorker ADDRESS SCHEMA MODE
//
// `mixed`: handlers that take a while, fail at random and write an effect. `poison`: the handler kills the process.
#if Postgres
import Coroutine
import CoroutinePostgres
import CoroutineWork
import Glibc

struct Task: Codable, Sendable { var number: Int, text: String }
struct Flaky: Error {}

co_main {
  let arguments = CommandLine.arguments
  guard arguments.count == 4 else { exit(64) }
  let schema = arguments[2]
  co_launch(name: "input") {
    try co_untilReadable(STDIN_FILENO)
    exit(0)
  }
  var pool = PostgresPool.Options()
  pool.connections = 0...4
  let db = try PostgresPool(arguments[1], options: pool)
  var options = WorkOptions()
  options.lease = .seconds(1)
  options.poll = .milliseconds(50)
  options.backoff = { _ in .milliseconds(10) }
  let queue = WorkQueue<Task>("q", on: db, schema: schema, options: options)
  try queue.work(concurrency: 8) { job in
    if arguments[3] == "poison" { kill(getpid(), SIGKILL) }
    try co_delay(.milliseconds(Int.random(in: 0...10)))
    if Int.random(in: 0..<20) == 0 { throw Flaky() }
    try job.finish { t in
      try t.run(
        """
        insert into \(identifier: schema).effect (job, number, key, fence)
        select id, \(job.payload.number), order_key, \(job.fence) from \(identifier: schema).job where id = \(job.id)
        """
      )
    }
  }
}
#endif
