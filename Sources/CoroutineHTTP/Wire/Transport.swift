#if HTTP
import CoroutineNet

/// What a connection reads and writes with: the socket itself, or TLS on it.
struct Transport: Sendable {
  let connection: Connection
  let tls: TLS.Stream?

  /// Reads once; suspends if nothing has arrived.
  ///
  /// `beforeWaiting` releases memory that `room` allocates.
  func receive(beforeWaiting: () -> Void = {}, into room: () -> UnsafeMutableRawBufferPointer) throws -> Int {
    if let tls { return try tls.receive(beforeWaiting: beforeWaiting, into: room) }
    return try connection.receive(beforeWaiting: beforeWaiting, into: room)
  }

  /// Reads once, or returns nil if that would suspend.
  func receiveNow(into room: UnsafeMutableRawBufferPointer) throws -> Int? {
    if let tls { return try tls.receiveNow(into: room) }
    return try connection.receiveNow(into: room)
  }

  func write(
    _ first: UnsafeRawBufferPointer,
    _ second: UnsafeRawBufferPointer = .init(start: nil, count: 0),
    _ third: UnsafeRawBufferPointer = .init(start: nil, count: 0)
  ) throws {
    if let tls {
      for part in [first, second, third] where part.count > 0 { try tls.write(part) }
    } else if second.count == 0, third.count == 0 {
      try connection.write(first)
    } else {
      try connection.write(first, second, third)
    }
  }

  /// Ends the output; with TLS the peer is told first.
  func shutdownWrite() throws {
    if let tls { try tls.shutdownWrite() } else { try connection.shutdownWrite() }
  }
}
#endif
