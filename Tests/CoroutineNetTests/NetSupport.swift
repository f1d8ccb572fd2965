import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// Runs `body` in a coroutine on the shared scheduler.
func onCoroutine<Output: Sendable>(_ body: sending @escaping () throws -> Output) async throws -> Output {
  try await co_launch(body).value
}

/// Runs `body` in a coroutine on two workers of its own, which all that it launches shares.
///
/// For long tests: on the shared workers, what they launch all the time would keep the other tests waiting.
func onOwnWorkers<Output: Sendable>(_ body: @escaping @Sendable () throws -> Output) async throws -> Output {
  // A pool lives for ever, as the shared one does.
  let pool = Unmanaged.passRetained(WorkerPool(count: 2, label: "coroutine.tests.net")).takeUnretainedValue()
  let job = Job(
    scheduler: pool.nextWorker().forRecord(),
    name: "test",
    stack: .standard,
    launchSite: LaunchSite(file: #fileID, line: #line),
    body: body
  )
  job.launch(.queued, holding: nil)
  return try await job.value
}

/// A value behind a pthread mutex; ThreadSanitizer does not see `Synchronization.Mutex` on Linux.
final class Locked<Value>: @unchecked Sendable {
  // Sound because `value` is accessed only between lock and unlock of `mutex`, which never moves in memory.
  private var value: Value
  private let mutex: UnsafeMutablePointer<pthread_mutex_t>

  init(_ value: sending Value) {
    self.value = value
    mutex = .allocate(capacity: 1)
    mutex.initialize(to: pthread_mutex_t())
    pthread_mutex_init(mutex, nil)
  }

  deinit {
    pthread_mutex_destroy(mutex)
    mutex.deallocate()
  }

  func withLock<Output>(_ body: (inout Value) throws -> sending Output) rethrows -> sending Output {
    pthread_mutex_lock(mutex)
    defer { pthread_mutex_unlock(mutex) }
    return try body(&value)
  }
}

extension Locked where Value: Sendable {
  var current: Value { withLock { $0 } }
}

/// A listener on the loopback, and two ends of one TCP connection to it.
struct TCPPair {
  let listener: Listener
  let client: Connection
  let server: Connection

  init() throws {
    listener = try Listener.bind(.loopback(port: 0))
    client = try Connection.connect(to: listener.address)
    server = try listener.accept()
  }
}

extension WatchedDescriptor {
  /// Whether a coroutine waits in the direction.
  func isAwaited(_ direction: Direction) -> Bool { self.direction(direction).word.state == .waiting }
}

extension DatagramSocket {
  /// Suspends until another coroutine waits in the direction.
  func untilAwaited(_ direction: WatchedDescriptor.Direction) throws {
    while !socket.isAwaited(direction) { try co_yield() }
  }
}

extension Connection {
  /// Suspends until another coroutine waits in the direction.
  func untilAwaited(_ direction: WatchedDescriptor.Direction) throws {
    while !socket.isAwaited(direction) { try co_yield() }
  }

  /// Fills the system's buffers until nothing more fits; returns the number of bytes.
  ///
  /// By the system's own call. A deadline that ends a write may come before the buffers are full, and `poll` says that
  /// a local socket has no room as soon as a part of its buffer is used.
  func fill() throws -> Int {
    let block = [UInt8](repeating: 7, count: 65_536)
    var all = 0
    withUnsafeDescriptor { number in
      while case let sent = Glibc.send(number, block, block.count, Int32(MSG_NOSIGNAL)), sent > 0 { all += sent }
    }
    return all
  }

  /// Reads until the end of the stream.
  func readAll() throws -> [UInt8] {
    var all: [UInt8] = []
    while true {
      let bytes = try read(upTo: 65_536)
      if bytes.isEmpty { return all }
      all += bytes
    }
  }

  func readExactly(_ count: Int) throws -> [UInt8] {
    var all: [UInt8] = []
    while all.count < count {
      let bytes = try read(upTo: count - all.count)
      if bytes.isEmpty { break }
      all += bytes
    }
    return all
  }
}

/// A loopback address that no other test uses, so that no other test is given the port that a listener has left.
func ownLoopback() throws -> SocketAddress {
  let number = ownAddresses.withLock { number in
    number += 1
    return number
  }
  return try .ipv4("127.1.\(number / 250).\(number % 250 + 1)", port: 0)
}

private let ownAddresses = Locked(0)

/// Calls `body` with a port of 127.0.0.1 that is taken, and on which nobody listens.
func withSilentPort<Output>(_ body: (UInt16) throws -> Output) throws -> Output {
  let holder = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
  defer { close(holder) }
  var address = sockaddr_in()
  address.sin_family = sa_family_t(AF_INET)
  address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
  var length = socklen_t(MemoryLayout<sockaddr_in>.size)
  let isBound = withUnsafeMutablePointer(to: &address) {
    $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
      bind(holder, $0, length) == 0 && getsockname(holder, $0, &length) == 0
    }
  }
  try #require(isBound)
  return try body(UInt16(bigEndian: address.sin_port))
}

/// Connects until nobody listens at `address`.
///
/// A listener that closes resets the connections that it has not accepted. A process that another thread forks has a
/// copy of a closed listener until it runs its program, and so long the kernel goes on listening. The suite's limit
/// ends a wait for ever.
func waitUntilRefused(by address: SocketAddress) throws {
  while true {
    do {
      try Connection.connect(to: address).close()
    } catch let error as NetError where error.code == ECONNREFUSED {
      return
    } catch let error as NetError where error.code == ECONNRESET {}
    try co_yield()
  }
}

/// Runs the body of an exit test in a coroutine.
///
/// Records its error with its text: of an error that leaves the body, the parent learns only that there was one.
func inCoroutine(_ body: @escaping @Sendable () throws -> Void) async {
  do { try await co_launch(body).value } catch { Issue.record("\(error)") }
}

/// Waits once for a connection, so that everything that is made at the first use, and kept, is made.
func warmUp() throws {
  let pair = try TCPPair()
  let reader = co_launch { try pair.server.read(upTo: 1) }
  try pair.server.untilAwaited(.reading)
  try pair.client.write([1])
  _ = try reader.join()
}

/// Waits until Dispatch has made the descriptor of its timers, which it does on a thread of its own.
func untilTimersWork() throws {
  while !FirstTimer.shared.works { try co_yield() }
}

/// The same as `warmUp` and `untilTimersWork`: no descriptor is made after that, and kept.
func warmUpWithTimers() throws {
  try warmUp()
  try untilTimersWork()
}

/// Suspends until `condition` holds.
func until(_ condition: () throws -> Bool) throws {
  try co_timeout(.seconds(50)) { while try !condition() { try co_yield() } }
}

/// The error of `body`, which must throw.
func failure<Output>(_ body: () throws -> Output) -> (any Error)? {
  do {
    _ = try body()
    return nil
  } catch {
    return error
  }
}

/// The error number of the NetError that `body` throws; nil if it throws something else, or nothing.
func code<Output>(_ body: () throws -> Output) -> Int32? { (failure(body) as? NetError)?.code }

/// The NetError that `body` throws.
func netError<Output>(_ body: () throws -> Output) -> NetError? { failure(body) as? NetError }

/// The number of open descriptors of the process.
func openDescriptors() -> Int {
  guard let folder = opendir("/proc/self/fd") else { return -1 }
  defer { closedir(folder) }
  var count = 0
  while let entry = readdir(folder) {
    if entry.pointee.d_name.0 != CChar(UInt8(ascii: ".")) { count += 1 }
  }
  return count - 1
}

/// A path in the temporary folder that no file has.
func freshPath(_ name: String) -> String { "/tmp/co-net-\(getpid())-\(name)-\(UInt32.random(in: 0 ... .max))" }

/// One seeded run; `CO_SEED` replays it, `CO_STRESS` multiplies the rounds.
struct Run {
  let seed: UInt64
  let factor: Double

  init() {
    seed = getenv("CO_SEED").flatMap { UInt64(String(cString: $0)) } ?? .random(in: 0 ... .max)
    factor = getenv("CO_STRESS").flatMap { Double(String(cString: $0)) } ?? 1
  }

  func rounds(_ usual: Int) -> Int { max(1, Int(Double(usual) * factor)) }
  func random(_ part: Int) -> Random { Random(state: seed ^ UInt64(part + 1) &* 0x9E37_79B9_7F4A_7C15) }
  var replay: String { "replay with CO_SEED=\(seed)" }
}

/// SplitMix64.
struct Random: RandomNumberGenerator {
  var state: UInt64
  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var mixed = state
    mixed = (mixed ^ (mixed >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }
}
