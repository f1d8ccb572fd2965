import Coroutine
import Synchronization
import Testing

// The code of docs/locks.md, compiled and run.

private struct Configuration: Sendable { let name: String }

private func load() throws -> Configuration {
  try co_yield()
  return Configuration(name: "loaded")
}

private let accounts = Channel<Int>(1)

private final class Sessions: Sendable {
  private let open = ThreadMutex<Set<Int>>([])

  /// Serves one session; the section in the `defer` also runs when the coroutine is cancelled.
  func serve(_ number: Int, _ body: () throws -> Void) rethrows {
    open.withLock { _ = $0.insert(number) }
    defer { open.withLock { _ = $0.remove(number) } }
    try body()
  }

  var count: Int { open.withLock { $0.count } }
}

private final class Journal: Sendable {
  private let order = FairMutex()

  /// The lock belongs to the coroutine, so it may be held over the waits.
  func add(_ amount: Int) throws {
    try order.withLock {
      let balance = try accounts.receive() ?? 0
      try accounts.send(balance + amount)
    }
  }

  /// In a `defer`, or wherever a cancellation must not keep the coroutine from locking.
  func close() throws {
    try co_shield {
      try order.withLock { _ = try accounts.receive() }
    }
  }
}

private final class Hits: Sendable {
  private let total = Mutex(0)

  @inline(never)
  func count() { total.withLock { $0 += 1 } }

  var now: Int { total.withLock { $0 } }
}

private final class Table: Sendable {
  private let lock = FairReadWriteLock()
  private let rows = ThreadMutex<[String]>([])

  /// No row is written while a consumer goes through them.
  func all() -> Generator<String, Never, Void> {
    co_sequence { [self] yield in
      try lock.withReadLock {
        for row in rows.withLock({ $0 }) { try yield(row) }
      }
    }
  }
}

extension Table {
  fileprivate func add(_ row: String) throws { try lock.withWriteLock { rows.withLock { $0.append(row) } } }
}

private enum Settings {
  static let once = Once<Configuration>()
  static func current() throws -> Configuration { try once.run { try load() } }
}

/// The fault of hazard 18: here it is run on one thread alone.
private func serveWithMutex(_ requests: Channel<Int>, _ answers: Channel<Int>) throws -> Int {
  let served = Mutex(0)
  while let request = try requests.receive() {  // waits, and continues perhaps on another thread
    served.withLock { $0 += 1 }  // a Mutex, which gets the number of the thread of the first round
    try answers.send(request)
  }
  return served.withLock { $0 }
}

@Suite struct LockSnippets {
  @Test func `the code of the page on locks runs`() async throws {
    let (sessions, journal, hits) = (Sessions(), Journal(), Hits())
    try await co_launch {
      try accounts.send(1)
      try sessions.serve(1) {
        #expect(sessions.count == 1)
        try co_yield()
      }
      for _ in 0..<3 {
        hits.count()
        try journal.add(2)
      }
      #expect(try accounts.receive() == 7)
      try accounts.send(7)
      try journal.close()
      #expect(try Settings.current().name == "loaded")
      let table = Table()
      for row in ["first", "second"] { try table.add(row) }
      #expect(Array(table.all()) == ["first", "second"])
      try table.add("third")
      let (requests, answers) = (Channel<Int>(2), Channel<Int>(2))
      try requests.send(1)
      requests.close()
      #expect(try serveWithMutex(requests, answers) == 1)
    }.value
    #expect(sessions.count == 0)
    #expect(hits.now == 3)
  }
}
