#if NIO
import Coroutine
import CoroutineNIO
import Glibc
import NIOCore
import NIOEmbedded
import NIOPosix
import Synchronization
import Testing

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

/// A gate that coroutines wait at, and that any code opens, once.
typealias Gate = Promise<Void>

extension Promise where Success == Void {
  func pass() throws { try co_await(self) }
  func open() { fulfill(()) }
}

struct Oops: Error, Equatable {}

/// The factor by which long tests are longer than usual: CO_STRESS, or 1.
let stress = getenv("CO_STRESS").flatMap { Double(String(cString: $0)) } ?? 1

/// Returns `usual` times `CO_STRESS`, and at least `least`.
func stressed(_ usual: Int, least: Int = 20) -> Int { max(least, Int(Double(usual) * stress)) }

/// Whether a sanitizer is linked in.
let isSanitized = dlsym(nil, "__asan_init") != nil || dlsym(nil, "__tsan_init") != nil

/// The factor for races with the shutdown of a loop: at least 1, so that there are 10,000 of them, except under
/// ThreadSanitizer, where each takes ten times as long.
let shutdownStress = dlsym(nil, "__tsan_init") == nil ? max(1, stress) : stress

/// Runs `body` with event loops of its own, and shuts them down afterwards.
func withLoops<Output: Sendable>(
  _ count: Int = 1,
  _ body: (MultiThreadedEventLoopGroup) async throws -> Output
) async throws -> Output {
  let group = MultiThreadedEventLoopGroup(numberOfThreads: count)
  do {
    let output = try await body(group)
    try await group.shutdownGracefully()
    return output
  } catch {
    try? await group.shutdownGracefully()
    throw error
  }
}

/// Runs `body` in a coroutine of the shared scheduler, while event loops of its own run.
func onWorker<Output: Sendable>(
  loops: Int = 1,
  _ body: @escaping @Sendable (MultiThreadedEventLoopGroup) throws -> Output
) async throws -> Output {
  try await withLoops(loops) { group in
    try await co_launch { try body(group) }.value
  }
}

/// Runs `body` in a coroutine of an event loop of its own.
func onLoop<Output: Sendable>(
  _ body: @escaping @Sendable (any EventLoop) throws -> Output
) async throws -> Output {
  try await withLoops { group in
    let loop = group.next()
    return try await co_launch(on: loop) { try body(loop) }.value
  }
}

private final class Start {
  let body: () -> Void
  init(_ body: @escaping () -> Void) { self.body = body }
}

/// Runs `body` on a thread of its own, where it may block, and suspends until its end.
@discardableResult
func onOwnThread<Output: Sendable>(_ body: @escaping @Sendable () throws -> Output) async throws -> Output {
  let end = Promise<Output>()
  let start = Start {
    do { end.fulfill(try body()) } catch { end.reject(error) }
  }
  var thread = pthread_t()
  let code = pthread_create(
    &thread,
    nil,
    { start in
      guard let start else { return nil }
      Unmanaged<Start>.fromOpaque(start).takeRetainedValue().body()
      return nil
    },
    Unmanaged.passRetained(start).toOpaque()
  )
  precondition(code == 0, "No thread for the test: pthread_create answers \(code).")
  pthread_detach(thread)
  return try await end.value
}

/// The name of an error, or of the absence of one, to compare.
func outcome<Output>(_ body: () throws -> Output) -> String {
  do {
    return "\(try body())"
  } catch {
    switch error {
    case ChannelError.ioOnClosedChannel: return "ioOnClosedChannel"
    case ChannelError.outputClosed: return "outputClosed"
    default: return "\(error)"
    }
  }
}

extension ExitTest.Result {
  /// Whether the process wrote `sentence` to its standard error.
  func said(_ sentence: String) -> Bool {
    String(decoding: standardErrorContent, as: UTF8.self).contains(sentence)
  }
}

extension ByteBuffer {
  var text: String { String(buffer: self) }
}

/// A loopback address that no other server has, so that none is given the port that another has left; the system
/// chooses the port.
func loopback() throws -> SocketAddress {
  let number = serverNumber.wrappingAdd(1, ordering: .relaxed).newValue
  return try SocketAddress(ipAddress: "127.3.\(number / 250).\(number % 250 + 1)", port: 0)
}

private let serverNumber = Atomic<Int>(0)

typealias Bytes = NIOCoroutineChannel<ByteBuffer, ByteBuffer>

/// A server that runs beside the test.
final class Running: Sendable {
  let job: Job<Void>
  let address: SocketAddress
  let listener: any NIOCore.Channel

  /// Starts a server; called in a coroutine.
  init(
    _ group: any EventLoopGroup,
    drain: Duration = .seconds(10),
    halfClosure: Bool = false,
    onError: (@Sendable (any Error, any NIOCore.Channel) -> Void)? = nil,
    configure: @escaping @Sendable (any NIOCore.Channel) throws -> Void = { _ in },
    _ handle: @escaping @Sendable (Bytes) throws -> Void
  ) throws {
    let bound = Promise<any NIOCore.Channel>()
    let target = try loopback()
    job = co_launch(name: "server") {
      do {
        try ServerBootstrap(group: group)
          .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
          .childChannelOption(.allowRemoteHalfClosure, value: halfClosure)
          .serve(
            to: target,
            drain: drain,
            onListening: { bound.fulfill($0) },
            onError: onError,
            configure: configure,
            handle
          )
      } catch {
        bound.reject(error)
        throw error
      }
    }
    listener = try co_await(bound)
    address = listener.localAddress!
  }

  func stop() throws {
    job.cancel()
    try job.join()
  }
}

/// Uses a connection to `address`, in a coroutine of one of the group's loops.
func connect<Output: Sendable>(
  _ group: any EventLoopGroup,
  _ address: SocketAddress,
  halfClosure: Bool = false,
  configure: @escaping @Sendable (any NIOCore.Channel) throws -> Void = { _ in },
  _ body: @escaping @Sendable (Bytes) throws -> Output
) throws -> Output {
  try ClientBootstrap(group: group)
    .channelOption(.allowRemoteHalfClosure, value: halfClosure)
    .withConnection(to: address, configure: configure, body)
}

/// Reads to the end of input.
func readAll(_ connection: Bytes) throws -> ByteBuffer {
  var all = ByteBuffer()
  while var part = try connection.read() { all.writeBuffer(&part) }
  return all
}

@Sendable
func echo(_ connection: Bytes) throws {
  while let bytes = try connection.read() { try connection.write(bytes) }
}
#endif
