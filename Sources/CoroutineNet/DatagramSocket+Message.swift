internal import CLinux
import Coroutine
import Glibc

// A socket that is bound to several addresses of a machine receives datagrams for all of them. Its answer must come
// from the address that was asked, because the asker drops answers from others: DNS does, and QUIC. The kernel reports
// that address with each datagram (IP_PKTINFO, IPV6_RECVPKTINFO), and takes it back in the same form when the answer is
// sent. A socket for both families has IPv6 information for IPv4 as well.

extension DatagramSocket {
  /// Makes the kernel report where each datagram was sent to.
  static func reportTargets(_ number: Int32, _ family: Int32) {
    if family == AF_INET { _ = clinux_set_option(number, CLINUX_PACKET_INFO, true) }
    if family == AF_INET6 { _ = clinux_set_option(number, CLINUX_PACKET_INFO_V6, true) }
  }

  /// Receives a datagram, and says which address of this machine it was sent to.
  ///
  /// Answer from that address by ``send(_:to:from:)``. A group, or a broadcast address, is no address to answer from:
  /// then use ``send(_:to:)``. Suspends until a datagram arrives. If the coroutine is cancelled, it throws at once, and
  /// no datagram is consumed.
  ///
  /// - Returns: The number of bytes, which may be 0, the sender's address, and the address that the sender has asked,
  ///   with the port of this socket; for a Unix socket ``address``.
  /// - Throws: ``NetError/tooLong`` if the datagram is larger than the buffer; the buffer has the beginning of it, and
  ///   the other bytes are lost. ``NetError/closed`` after a close, also if the socket is closed while it waits. The
  ///   cancellation error. `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func receiveMessage(
    into buffer: UnsafeMutableRawBufferPointer
  ) throws -> (count: Int, from: SocketAddress, to: SocketAddress) {
    var sender: SocketAddress?
    var target: SocketAddress?
    let count = try NetError.translating("receiving at", address) {
      try socket.perform(.reading) { number in
        if let end = socket.simulated, let simulated = end as? any SimulatedDatagrams {
          return receive(number, simulated, buffer, &sender, &target)
        }
        var result: Int64 = 0
        var isKnown = false
        let asked = SocketAddress.read { targetBytes, targetLength in
          sender = SocketAddress.read {
            result = clinux_receive_message(number, buffer.baseAddress, buffer.count, $0, $1, targetBytes, targetLength)
          }
          isKnown = targetLength.pointee > 0
        }
        target = isKnown ? asked : nil
        return .init(result)
      }
    }
    if count > buffer.count { throw NetError(.tooLong, "receiving at", address) }
    let to = target.map { if let port = address.port { $0.with(port: port) } else { $0 } } ?? address
    return (Int(count), sender ?? SocketAddress(.unix([])), to)
  }

  /// Sends a datagram from one of the addresses of this machine, as the answer to ``receiveMessage(into:)``.
  ///
  /// Suspends while the system has no room for it. If the coroutine is cancelled, it throws at once, and the datagram
  /// is not sent. A datagram that was sent may be lost.
  ///
  /// - Parameters:
  ///   - bytes: The datagram.
  ///   - address: The receiver.
  ///   - source: An address of this machine; its port is that of this socket, or 0.
  /// - Throws: ``NetError``: `EADDRNOTAVAIL` if `source` has another port; `EINVAL` or `EADDRNOTAVAIL` if this machine
  ///   does not have the address; `EAFNOSUPPORT` if it is of another family than this socket, and for a Unix socket.
  ///   The other errors of ``send(_:to:)``.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func send(_ bytes: [UInt8], to address: SocketAddress, from source: SocketAddress) throws {
    let operation = "sending from \(source) to"
    guard family != AF_UNIX, source.family == family || family == AF_INET6 && source.family == AF_INET else {
      throw NetError(code: EAFNOSUPPORT, operation, address)
    }
    guard source.port == 0 || source.port == self.address.port else {
      throw NetError(code: EADDRNOTAVAIL, operation, address)
    }
    try NetError.translating(operation, address) {
      if let end = socket.simulated, let simulated = end as? any SimulatedDatagrams {
        _ = try socket.perform(.writing) { _ in .init(0) }
        guard simulated.send(bytes, to: address, from: source.with(port: self.address.port ?? 0)) else {
          throw NetError(code: EADDRNOTAVAIL, operation, address)
        }
        return
      }
      _ = try socket.perform(.writing) { number in
        let result = address.withSystem(for: family) { system, length in
          source.withSystem(for: family) { sourceSystem, sourceLength in
            bytes.withUnsafeBytes {
              clinux_send_from(number, $0.baseAddress, $0.count, system, length, sourceSystem, sourceLength)
            }
          }
        }
        return .init(result)
      }
    }
  }
}
