import Coroutine
import Glibc

/// The bytes that a BufferedReader has received and not returned.
///
///   memory   |  returned  |  start ..< end: received  |  room  |  capacity
///
/// Invariants
///  1. 0 <= start <= end <= capacity. Without memory, start and end are 0.
///  2. The memory doubles as bytes arrive that one call needs beyond the usual capacity. So a peer that announces many
///     bytes and sends few costs little memory. Bytes that a former reader hands over may be more than that from the
///     start.
///  3. While the reader waits without a received byte, it has no memory. After that the memory has its usual size.
///
/// Owner: the reader, which one coroutine uses at a time.
final class ReadBuffer {
  /// The usual capacity.
  ///
  /// Half an `Int`, beside `isAtEnd`: that saves each idle reader 16 bytes.
  private let usual: UInt32
  private var isAtEnd = false
  private var capacity: Int
  private var memory: UnsafeMutableRawPointer?
  private var start = 0
  private var end = 0

  init(capacity: Int) {
    // It is allocated before a byte has arrived; a call that needs more gets more.
    usual = UInt32(clamping: min(max(1, capacity), 1 << 24))
    self.capacity = Int(usual)
  }

  /// Creates a buffer that holds bytes already.
  convenience init(capacity: Int, startingWith bytes: [UInt8]) {
    self.init(capacity: capacity)
    if bytes.isEmpty { return }
    self.capacity = max(self.capacity, bytes.count)
    let memory = UnsafeMutableRawPointer.allocate(byteCount: self.capacity, alignment: 16)
    bytes.withUnsafeBytes { memory.copyMemory(from: $0.baseAddress.unsafelyUnwrapped, byteCount: $0.count) }
    self.memory = memory
    end = bytes.count
  }

  deinit { memory?.deallocate() }

  var hasMemory: Bool { memory != nil }

  /// The bytes that are received and not returned.
  var bytes: UnsafeRawBufferPointer {
    UnsafeRawBufferPointer(start: memory.map { UnsafeRawPointer($0 + start) }, count: end - start)
  }

  /// Removes and returns the first `count` bytes.
  func take(_ count: Int) -> [UInt8] {
    let taken = [UInt8](bytes.prefix(count))
    drop(count)
    return taken
  }

  func drop(_ count: Int) {
    start += count
    if start == end { (start, end) = (0, 0) }
  }

  /// Reads once from the connection, and appends the bytes; returns false at the end of the stream.
  ///
  /// Suspends if no byte has arrived. If it throws, the received bytes have not changed.
  func fill(from connection: Connection) throws -> Bool {
    if isAtEnd { return false }
    let count = try connection.claiming(.reading, "reading from") {
      try connection.socket.perform(.reading) {
        // An empty buffer needs no memory while the coroutine waits.
        if self.start == self.end { self.release() }
      } _: { number in
        self.makeRoom()
        return Connection.receive(number, self.memory.unsafelyUnwrapped + self.end, self.capacity - self.end)
      }
    }
    end += Int(count)
    isAtEnd = count == 0
    return count > 0
  }

  /// Reads once without waiting, into an empty buffer; returns nil if no byte has arrived, false at the stream's end.
  ///
  /// Never suspends.
  func fillNow(from connection: Connection) throws -> Bool? {
    if isAtEnd { return false }
    let count = try connection.claiming(.reading, "reading from") {
      try connection.socket.attempt(.reading) { number in
        self.makeRoom()
        return Connection.receive(number, self.memory.unsafelyUnwrapped + self.end, self.capacity - self.end)
      }
    }
    guard let count else {
      // An empty buffer needs no memory while the coroutine waits.
      if start == end { release() }
      return nil
    }
    end += Int(count)
    isAtEnd = count == 0
    return count > 0
  }

  /// Returns received bytes, or else what one read gives.
  ///
  /// At most `count`; an empty array at the end of the stream.
  /// Suspends if no byte has arrived. A read of more than the usual capacity needs no copy.
  func take(upTo count: Int, from connection: Connection) throws -> [UInt8] {
    if start == end, count > Int(usual) {
      if isAtEnd { return [] }
      release()
      let bytes = try connection.read(upTo: count)
      isAtEnd = bytes.isEmpty
      return bytes
    }
    if start == end, try !fill(from: connection) { return [] }
    return take(min(count, end - start))
  }

  private func release() {
    memory?.deallocate()
    memory = nil
    capacity = Int(usual)
    (start, end) = (0, 0)
  }

  /// Makes room for at least one byte after `end`.
  private func makeRoom() {
    guard let old = memory else {
      memory = .allocate(byteCount: capacity, alignment: 16)
      return
    }
    guard end == capacity else { return }
    let count = end - start
    if start > 0, count <= capacity / 2 {
      old.copyMemory(from: old + start, byteCount: count)
    } else {
      capacity *= 2
      let new = UnsafeMutableRawPointer.allocate(byteCount: capacity, alignment: 16)
      new.copyMemory(from: old + start, byteCount: count)
      old.deallocate()
      memory = new
    }
    (start, end) = (0, count)
  }
}
