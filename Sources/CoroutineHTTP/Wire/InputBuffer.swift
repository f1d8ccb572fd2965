#if HTTP
import Glibc

// The bytes that a connection has received and not used.
//
//   memory   | used |  start: the head, kept while its message is served  | next ..< end: unread | room | capacity
//
// Invariants
//  1. 0 <= start <= start + kept <= next <= end <= capacity. Without memory all are 0.
//  2. The head of the current message stays in front of the unread bytes until `endMessage`, at an offset that may
//     change when bytes arrive. So whatever refers to it has offsets from `head`.
//  3. While nothing is kept and nothing is unread, the memory can be released: an idle connection has none.
//
// Owner: the connection's coroutine.

final class InputBuffer {
  private var memory: UnsafeMutableRawPointer?
  private var capacity = 0
  private var start = 0
  private var kept = 0
  private var next = 0
  private var end = 0

  private static var usual: Int { 4_096 }

  deinit { free(memory) }

  var unread: UnsafeRawBufferPointer {
    UnsafeRawBufferPointer(start: memory.map { UnsafeRawPointer($0 + next) }, count: end - next)
  }

  /// The first byte of the current message's head; `keep` has been called.
  var head: UnsafeRawPointer { UnsafeRawPointer(memory.unsafelyUnwrapped + start) }

  var isEmpty: Bool { next == end }

  /// Begins a message: the first `count` unread bytes are its head.
  func keep(_ count: Int) {
    start = next
    kept = count
    next += count
  }

  func drop(_ count: Int) { next += count }

  func endMessage() {
    kept = 0
    start = next
    if next == end { (start, next, end) = (0, 0, 0) }
  }

  /// Memory after the unread bytes, at least one byte.
  func room() -> UnsafeMutableRawBufferPointer {
    if memory == nil {
      capacity = Self.usual
      memory = Memory.resize(nil, capacity)
    } else if next == end {
      // Nothing is unread: the room begins behind the head.
      next = start + kept
      end = next
    }
    if end == capacity { makeRoom() }
    return UnsafeMutableRawBufferPointer(start: memory.unsafelyUnwrapped + end, count: capacity - end)
  }

  func received(_ count: Int) { end += count }

  private func makeRoom() {
    let old = memory.unsafelyUnwrapped
    // What is needed moves to the front: the head, and the unread bytes behind it.
    let unread = end - next
    let needed = kept + unread
    let isLarge = needed > capacity / 2
    let new = isLarge ? Memory.resize(nil, capacity * 2) : old
    memmove(new, old + start, kept)
    memmove(new + kept, old + next, unread)
    if isLarge {
      free(old)
      capacity *= 2
    }
    memory = new
    (start, next, end) = (0, kept, needed)
  }

  /// Releases the memory if nothing in it is needed.
  func releaseIfEmpty() {
    guard kept == 0, next == end else { return }
    free(memory)
    memory = nil
    (capacity, start, next, end) = (0, 0, 0, 0)
  }
}
#endif
