import Coroutine
import CoroutinePostgres
import Glibc
import Harness

/// The memory of coroutines that wait for 16 connections, and the order in which they are served.
///
/// With COROUTINE_WORKERS=1 the order in which they ask is known.
func measureWaiters(_ address: String, count: Int) throws {
  var options = PostgresPool.Options()
  options.connections = 0...16
  options.acquireTimeout = .seconds(600)
  let db = try PostgresPool(address, options: options)
  let gate = Promise<Void>()
  let served = ThreadMutex<[Int]>([])
  try co_scope { scope in
    for _ in 0..<16 { scope.launch { try db.withConnection { _ in try co_await(gate) } } }
    while db.statistics.inUse < 16 || db.statistics.connecting > 0 { try co_delay(.milliseconds(1)) }
    let before = Memory.current.resident
    let asked = ThreadMutex(0)
    for _ in 0..<count {
      scope.launch {
        // In the order of asking, which is not that of the launches.
        let number = asked.withLock { asked in
          asked += 1
          return asked - 1
        }
        try db.withConnection { connection in
          served.withLock { $0.append(number) }
          try connection.run("select 1")
        }
      }
    }
    while db.statistics.waiting < count { try co_delay(.milliseconds(1)) }
    report("waiter_bytes", Double(Memory.current.resident - before) / Double(count))
    gate.fulfill(())
  }
  let order = served.withLock { $0 }
  expect(order.count, equals: count, "the number that was served")
  report("waiter_displaced", Double(zip(order, order.indices).map { abs($0 - $1) }.max() ?? 0))
}

/// Prints the moment of the first success, in seconds since 1970: the server starts meanwhile.
func waitForSuccess(_ address: String) throws {
  var options = PostgresPool.Options()
  options.acquireTimeout = .seconds(60)
  let db = try PostgresPool(address, options: options)
  try db.run("select 1")
  var now = timespec()
  clock_gettime(CLOCK_REALTIME, &now)
  report("success", Double(now.tv_sec) + Double(now.tv_nsec) / 1e9)
}
