#if HTTP
import Coroutine
import CoroutineNet
import CoroutineTesting
import Glibc
import HTTPTypes
import Testing

@testable import CoroutineHTTP

/// Runs `body` in a coroutine on the shared workers.
func onCoroutine<Output: Sendable>(_ body: sending @escaping () throws -> Output) async throws -> Output {
  try await co_launch(body).value
}

/// A value behind a pthread mutex; ThreadSanitizer does not see `Synchronization.Mutex` on Linux.
final class Locked<Value: Sendable>: @unchecked Sendable {
  // Sound because `value` is accessed only between lock and unlock of `mutex`, which never moves in memory.
  private var value: Value
  private let mutex: UnsafeMutablePointer<pthread_mutex_t>

  init(_ value: Value) {
    self.value = value
    mutex = .allocate(capacity: 1)
    mutex.initialize(to: pthread_mutex_t())
    pthread_mutex_init(mutex, nil)
  }

  deinit {
    pthread_mutex_destroy(mutex)
    mutex.deallocate()
  }

  func withLock<Output>(_ body: (inout Value) throws -> Output) rethrows -> Output {
    pthread_mutex_lock(mutex)
    defer { pthread_mutex_unlock(mutex) }
    return try body(&value)
  }

  var current: Value { withLock { $0 } }
}

/// A server that runs beside the test.
final class Running: Sendable {
  let job: Job<Void>
  let address: SocketAddress
  let errors: Locked<[String]>

  init(
    _ options: HTTPServer.Options = .init(),
    at address: SocketAddress = .loopback(port: 0),
    _ handle: @escaping @Sendable (borrowing ServerRequest, inout ServerResponse) throws -> Void
  ) throws {
    let bound = Promise<SocketAddress>()
    let errors = Locked<[String]>([])
    var options = options
    let onError = options.server.onError
    options.server.onError = { error, address in
      errors.withLock { $0.append("\(error)") }
      onError?(error, address)
    }
    self.errors = errors
    job = co_launch(name: "server") { [options] in
      do {
        try HTTPServer.run(address, options: options, onListening: { bound.fulfill($0) }, handle)
      } catch {
        bound.reject(error)
        throw error
      }
    }
    self.address = try co_await(bound)
  }

  var port: UInt16 { address.port ?? 0 }

  func stop() throws {
    job.cancel()
    try job.join()
  }
}

/// Whether the build has a sanitizer.
let isSanitized = dlsym(nil, "__asan_init") != nil || dlsym(nil, "__tsan_init") != nil

/// Runs a server while `body` runs.
func serving<R>(
  _ options: HTTPServer.Options = .init(),
  _ handle: @escaping @Sendable (borrowing ServerRequest, inout ServerResponse) throws -> Void,
  _ body: (Running) throws -> R
) throws -> R {
  let server = try Running(options, handle)
  let result = Result { try body(server) }
  try server.stop()
  return try result.get()
}

/// A loopback address that no other test uses, so that no other test is given the port that a listener has left.
func ownLoopback() throws -> SocketAddress {
  let number = ownAddresses.withLock { number in
    number += 1
    return number
  }
  return try .ipv4("127.4.\(number / 250).\(number % 250 + 1)", port: 0)
}

private let ownAddresses = Locked(0)

extension Connection {
  func send(_ text: String) throws { try write(Array(text.utf8)) }

  /// Suspends until the peer of a TCP connection has in its system what was sent: a busy machine delivers it late.
  ///
  /// Or until the connection has failed: what was not delivered before a reset counts as waiting for ever.
  func untilDelivered() throws {
    while withUnsafeDescriptor({ number in
      var waiting: Int32 = 0
      // Asked for nothing, it tells of POLLERR and POLLHUP.
      var state = pollfd(fd: number, events: 0, revents: 0)
      return ioctl(number, UInt(TIOCOUTQ), &waiting) == 0 && waiting > 0 && poll(&state, 1, 0) == 0
    }) { try co_yield() }
  }

  /// Everything up to the end of the stream; a reset counts as an end.
  func rest() throws -> String {
    var all: [UInt8] = []
    do {
      while case let bytes = try read(upTo: 65_536), !bytes.isEmpty { all += bytes }
    } catch let error as NetError where error.code == ECONNRESET {
      all += Array("<reset>".utf8)
    }
    return String(decoding: all, as: UTF8.self)
  }
}

extension Transport {
  func send(_ text: String) throws { try Array(text.utf8).withUnsafeBytes { try write($0) } }

  /// What one read gives; empty at the end of the stream.
  func next() throws -> String {
    try withUnsafeTemporaryAllocation(byteCount: 65_536, alignment: 1) { buffer in
      let count = try receive { buffer }
      return String(decoding: buffer[..<count], as: UTF8.self)
    }
  }

  /// Everything up to the end of the stream; a reset, or an end without that of TLS, is an error.
  func rest() throws -> String {
    var all = ""
    while case let part = try next(), !part.isEmpty { all += part }
    return all
  }
}

/// Sends bytes to a server, ends the output if asked to, and returns everything that comes back.
func ask(
  _ address: SocketAddress,
  _ text: String,
  ends: Bool = false,
  within limit: Duration = .seconds(120)
) throws -> String {
  let client = try Connection.connect(to: address)
  defer { client.close() }
  try client.send(text)
  if ends { try client.shutdownWrite() }
  return try co_timeout(limit) { try client.rest() }
}

/// The statuses that come back, as ``ask(_:_:ends:within:)``.
func askStatuses(_ address: SocketAddress, _ text: String) throws -> [Int] { statuses(try ask(address, text)) }

func statusesOf(_ answer: () throws -> String) rethrows -> [Int] { statuses(try answer()) }

/// The responses in a text: the status, and the rest up to the next status line.
func statuses(_ text: String) -> [Int] {
  text.components(of: "HTTP/1.1 ").dropFirst().compactMap { Int($0.prefix(3)) }
}

extension String {
  func components(of separator: String) -> [String] {
    var parts: [String] = []
    var part = ""
    var rest = self[...]
    while let first = rest.first {
      if rest.hasPrefix(separator) {
        parts.append(part)
        part = ""
        rest = rest.dropFirst(separator.count)
      } else {
        part.append(first)
        rest = rest.dropFirst()
      }
    }
    return parts + [part]
  }

  /// What follows the head.
  var body: String { components(of: "\r\n\r\n").dropFirst().joined(separator: "\r\n\r\n") }
}
#endif
