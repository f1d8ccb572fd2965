import Coroutine
import Glibc

/// The bytes that a BufferedReader has received and not given out.
///
///   memory   |  given out  |  start ..< end: received  |  room  |  capacity
///
/// Invariants: 0 <= start <= end <= capacity. Without memory, start and end are 0. The memory grows to what one call
/// needs beyond the usual capacity, as bytes arrive, so that a peer which announces much and sends little costs little.
/// It goes while nothing is received and the connection waits, and is of the usual size afterwards.
///
/// Used by one coroutine at a time: by the reader that owns it.
final class ReadBuffer {
  private let usual: Int
  private var capacity: Int
  private var memory: UnsafeMutableRawPointer?
  private var start = 0
  private var end = 0
  private var isAtEnd = false

  init(capacity: Int) {
    usual = max(1, capacity)
    self.capacity = usual
  }

  deinit { memory?.deallocate() }

  var hasMemory: Bool { memory != nil }

  /// What is received and not given out.
  var bytes: UnsafeRawBufferPointer {
    UnsafeRawBufferPointer(start: memory.map { UnsafeRawPointer($0 + start) }, count: end - start)
  }

  /// Returns the first `count` bytes, which are given out by this.
  func take(_ count: Int) -> [UInt8] {
    let taken = [UInt8](bytes.prefix(count))
    drop(count)
    return taken
  }

  func drop(_ count: Int) {
    start += count
    if start == end { (start, end) = (0, 0) }
  }

  /// Reads once from the connection, behind what is there; returns false at the end of the stream.
  ///
  /// If it throws, nothing has changed.
  func fill(from connection: Connection) throws -> Bool {
    if isAtEnd { return false }
    let count = try connection.claiming(.reading, "reading from") {
      try connection.socket.perform(.reading) {
        // Without a byte, the memory is of no use while the connection waits.
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

  private func release() {
    memory?.deallocate()
    memory = nil
    capacity = usual
    (start, end) = (0, 0)
  }

  /// Makes room for at least one byte behind `end`.
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
