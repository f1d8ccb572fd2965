package import Coroutine
import Glibc

// The kernel's form of an address: the family in the processor's byte order, the other numbers in network byte order.
//
//   sockaddr_in     family:2 port:2 address:4 zero:8                    16 bytes
//   sockaddr_in6    family:2 port:2 flow:4 address:16 scope:4           28 bytes
//   sockaddr_un     family:2 path:0...108                               as long as its path

extension SocketAddress {
  /// The size of a buffer that has room for every address.
  static var systemBytes: Int { 128 }

  var family: Int32 {
    switch storage {
    case .ipv4: AF_INET
    case .ipv6: AF_INET6
    case .unix: AF_UNIX
    }
  }

  /// Calls `body` with the kernel's form.
  ///
  /// For a socket of `family`, an IPv4 address is written as an IPv6 one.
  func withSystem<R>(for family: Int32? = nil, _ body: (UnsafeRawPointer, UInt32) throws -> R) rethrows -> R {
    try withUnsafeTemporaryAllocation(byteCount: Self.systemBytes, alignment: 8) { buffer in
      buffer.initializeMemory(as: UInt8.self, repeating: 0)
      let length = write(into: buffer, asIPv6: family == AF_INET6)
      return try body(UnsafeRawPointer(buffer.baseAddress.unsafelyUnwrapped), UInt32(length))
    }
  }

  private func write(into buffer: UnsafeMutableRawBufferPointer, asIPv6: Bool) -> Int {
    switch storage {
    case .ipv4(let address, let port) where asIPv6:
      return SocketAddress(.ipv6(high: 0, low: 0xFFFF_0000_0000 | UInt64(address), scope: 0, port: port))
        .write(into: buffer, asIPv6: false)
    case .ipv4(let address, let port):
      buffer.storeBytes(of: UInt16(AF_INET), as: UInt16.self)
      buffer.storeBytes(of: port.bigEndian, toByteOffset: 2, as: UInt16.self)
      buffer.storeBytes(of: address.bigEndian, toByteOffset: 4, as: UInt32.self)
      return 16
    case .ipv6(let high, let low, let scope, let port):
      buffer.storeBytes(of: UInt16(AF_INET6), as: UInt16.self)
      buffer.storeBytes(of: port.bigEndian, toByteOffset: 2, as: UInt16.self)
      buffer.storeBytes(of: high.bigEndian, toByteOffset: 8, as: UInt64.self)
      buffer.storeBytes(of: low.bigEndian, toByteOffset: 16, as: UInt64.self)
      buffer.storeBytes(of: scope, toByteOffset: 24, as: UInt32.self)
      return 28
    case .unix(let bytes):
      buffer.storeBytes(of: UInt16(AF_UNIX), as: UInt16.self)
      for (index, byte) in bytes.enumerated() { buffer[2 + index] = byte }
      // A path ends with a zero byte. An abstract name does not, because all its bytes are significant.
      return 2 + bytes.count + (bytes.first ?? 0 == 0 ? 0 : 1)
    }
  }

  /// Reads an address that the kernel has written; nil for other families.
  init?(system: UnsafeRawPointer, _ length: UInt32) {
    let buffer = UnsafeRawBufferPointer(start: system, count: min(Int(length), Self.systemBytes))
    // The kernel writes nothing for a peer that has no address.
    guard buffer.count >= 2 else {
      storage = .unix([])
      return
    }
    switch Int32(buffer.loadUnaligned(as: UInt16.self)) {
    case AF_INET where buffer.count >= 8:
      storage = .ipv4(
        UInt32(bigEndian: buffer.loadUnaligned(fromByteOffset: 4, as: UInt32.self)),
        UInt16(bigEndian: buffer.loadUnaligned(fromByteOffset: 2, as: UInt16.self))
      )
    case AF_INET6 where buffer.count >= 28:
      let port = UInt16(bigEndian: buffer.loadUnaligned(fromByteOffset: 2, as: UInt16.self))
      let high = UInt64(bigEndian: buffer.loadUnaligned(fromByteOffset: 8, as: UInt64.self))
      let low = UInt64(bigEndian: buffer.loadUnaligned(fromByteOffset: 16, as: UInt64.self))
      let scope = buffer.loadUnaligned(fromByteOffset: 24, as: UInt32.self)
      storage = SocketAddress(.ipv6(high: high, low: low, scope: scope, port: port)).canonical.storage
    case AF_UNIX:
      let bytes = buffer.dropFirst(2)
      // The kernel may count a path's zero byte.
      storage = .unix(bytes.first == 0 ? Array(bytes) : Array(bytes.prefix { $0 != 0 }))
    default: return nil
    }
  }

  /// Calls a system function that writes an address, and returns the address.
  static func read(_ body: (UnsafeMutableRawPointer, UnsafeMutablePointer<UInt32>) -> Void) -> SocketAddress? {
    withUnsafeTemporaryAllocation(byteCount: systemBytes, alignment: 8) { buffer in
      let bytes = buffer.baseAddress.unsafelyUnwrapped
      var length = UInt32(buffer.count)
      body(bytes, &length)
      return SocketAddress(system: bytes, length)
    }
  }

  /// Returns the address to which a socket is bound; nil if the kernel reports an error.
  static func local(of descriptor: Int32) -> SocketAddress? {
    var code: Int32 = -1
    let address = read { bytes, length in
      code = getsockname(descriptor, bytes.assumingMemoryBound(to: sockaddr.self), length)
    }
    return code == 0 ? address : nil
  }

  /// Returns the address of a socket's peer; nil if the socket is not connected.
  static func remote(of descriptor: Int32) -> SocketAddress? {
    var code: Int32 = -1
    let address = read { bytes, length in
      code = getpeername(descriptor, bytes.assumingMemoryBound(to: sockaddr.self), length)
    }
    return code == 0 ? address : nil
  }

  /// Whether this is [::]; a socket that is bound to it serves IPv4 as well.
  var isAny: Bool {
    if case .ipv6(0, 0, 0, _) = storage { true } else { false }
  }

  /// Makes `connection` and this address, the peer's, the title of a coroutine.
  package func name(_ title: CoroutineTitle?) {
    guard let title else { return }
    guard case .ipv4(let address, let port) = storage else {
      var text = "connection \(self)"
      return text.withUTF8 { title.set(UnsafeRawBufferPointer($0)) }
    }
    // Without an intermediate text: each connection of a server comes here.
    withUnsafeTemporaryAllocation(byteCount: 40, alignment: 1) { text in
      var count = 0
      func add(_ byte: UInt8) {
        text[count] = byte
        count += 1
      }
      func add(_ number: UInt32) {
        var unit: UInt32 = 10_000
        while unit > 1, number < unit { unit /= 10 }
        while unit > 0 {
          add(UInt8(ascii: "0") + UInt8(number / unit % 10))
          unit /= 10
        }
      }
      for byte in "connection ".utf8 { add(byte) }
      for shift: UInt32 in [24, 16, 8, 0] {
        add(address >> shift & 255)
        add(shift == 0 ? UInt8(ascii: ":") : UInt8(ascii: "."))
      }
      add(UInt32(port))
      title.set(UnsafeRawBufferPointer(rebasing: text[..<count]))
    }
  }

  func with(port: UInt16) -> SocketAddress {
    switch storage {
    case .ipv4(let address, _): SocketAddress(.ipv4(address, port))
    case .ipv6(let high, let low, let scope, _): SocketAddress(.ipv6(high: high, low: low, scope: scope, port: port))
    case .unix: self
    }
  }
}
