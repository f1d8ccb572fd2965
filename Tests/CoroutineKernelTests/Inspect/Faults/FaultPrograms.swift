import Coroutine
import Dispatch
import Glibc
import Synchronization

// Ten faults that make a server hang, each as small as it can be. The article "Finding out why a server hangs" shows
// them, and FaultTests asks for each the tool that the article names. scripts/lint holds the article against this file.

struct Faults: Sendable {
  let queue = DispatchQueue(label: "server.requests")

  // MARK: Two locks in opposite orders

  @inline(never)
  static func transfer(from source: FairMutex, to target: FairMutex) throws {
    try source.withLock {
      try co_yield()
      try target.withLock {}
    }
  }

  func lockInOppositeOrders() {
    // Launched by a coroutine of the same queue, so that both begin before one of them ends.
    co_launch(on: queue) {
      let (checking, savings) = (FairMutex(), FairMutex())
      co_launch(name: "pay rent") { try Faults.transfer(from: checking, to: savings) }
      co_launch(name: "save") { try Faults.transfer(from: savings, to: checking) }
    }
  }

  // MARK: A lock that is held during a slow wait

  @inline(never)
  static func refresh(_ cache: FairMutex, from upstream: Promise<Int>) throws -> Int {
    try cache.withLock { try co_await(upstream) }
  }

  func holdALockDuringAWait(_ upstream: Promise<Int>) {
    let cache = FairMutex()
    for number in 0..<30 {
      co_launch(on: queue, name: "request \(number)") { try Faults.refresh(cache, from: upstream) }
    }
  }

  // MARK: A computation without a suspension

  func compute(_ renderAllPages: @escaping @Sendable () -> Void) {
    co_launch(on: queue, name: "heartbeat") { while true { try co_delay(.milliseconds(10)) } }
    co_launch(on: queue, name: "report") { renderAllPages() }
  }

  // MARK: A blocking call on a worker

  func callRead(_ descriptor: CInt) {
    co_launch(name: "import") {
      var byte: UInt8 = 0
      return read(descriptor, &byte, 1)
    }
  }

  // MARK: A lock of threads on a worker

  final class Settings: Sendable {
    let values = Mutex(["retries": 3])
  }

  func lockThreads(_ settings: Settings) {
    co_launch(name: "lookup") { settings.values.withLock { $0["retries"] } }
  }

  // MARK: Coroutines that wait for ever

  @inline(never)
  static func call() throws -> Int {
    let answer = Promise<Int>()
    // The answer's number has been forgotten: no code will settle it.
    return try co_await(answer) + 1
  }

  func forgetAnswers(_ count: Int) {
    for _ in 0..<count { co_launch(on: queue) { try Faults.call() } }
  }

  // MARK: Permits that are not given back

  struct BadRequestError: Error {}

  @inline(never)
  static func query(_ connections: FairSemaphore, _ text: String) throws {
    try connections.acquire()
    if text.isEmpty { throw BadRequestError() }
    connections.release()
  }

  func losePermits() {
    let connections = FairSemaphore(4)
    for number in 0..<20 {
      co_launch(on: queue) { try Faults.query(connections, number < 4 ? "" : "SELECT 1") }
    }
  }

  // MARK: A consumer that has ended

  @inline(never)
  static func logLine(_ line: String, to lines: Channel<String>) throws {
    try lines.send(line)
    try co_checkCancelled()
  }

  func endTheConsumer() {
    let lines = Channel<String>(16)
    co_launch(on: queue, name: "log writer") {
      try lines.forEach { line in if line.isEmpty { throw BadRequestError() } }
    }
    co_launch(on: queue) { try lines.send("") }
    for number in 0..<20 {
      co_launch(on: queue, name: "request \(number)") { try Faults.logLine("served", to: lines) }
    }
  }

  // MARK: All threads for blocking calls are taken

  func useUpBlockingThreads(_ fileIsThere: DispatchSemaphore) {
    CoroutineRuntime.blockingThreadLimit = 2
    for _ in 0..<8 {
      co_launch(on: queue, name: "upload") { try co_blocking { fileIsThere.wait() } }
    }
  }

  // MARK: A crash

  @inline(never)
  static func parse(_ fields: [Int]) -> Int { fields[2] &+ 1 }

  func crash() {
    co_launch(name: "parser") { Faults.parse([1, 2]) }
  }
}
