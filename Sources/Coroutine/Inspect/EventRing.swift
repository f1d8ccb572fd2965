internal import CCoroutine
import Glibc
import Synchronization

// The last events of one scheduler, for the flight recorder (Recorder.swift). An event is two words. One thread at a
// time writes: the drain of the scheduler, whose threads follow each other by its inbox. Any thread reads, at any time.
//
// Event i is in slot i modulo the capacity. `written` is the number of complete events: it is a sequence number.
//
//   writer                                     reader
//   a. stores the words of slot (releasing)    1. loads n = written (acquiring)
//   b. stores written + 1 (releasing)          2. loads the words of the slots of n - capacity ..< n (acquiring)
//                                              3. loads m = written, and drops the events up to m - capacity
//
// Why an event that is kept is whole. The words of event i are overwritten by event i + capacity only, whose words the
// writer stores after it has stored `written` = i + capacity (step b of the event before). If the reader has loaded
// such a word in 2, then that load acquires the store in a, and so 3 sees m >= i + capacity, and event i is dropped.
// All events that 2 reads were complete by 1: their stores in a come before the store in b that 1 acquires. On x86-64
// these are plain loads and stores; on aarch64 they are load-acquires and store-releases, whose order the architecture
// keeps.
//
// How much is lost: the events that are written while the reader copies, and one more, from the oldest ones.

/// The last events of one scheduler.
final class EventRing: @unchecked Sendable {
  // Sound because of the proof above; everything else is constant, or atomic.

  /// An event as it is stored.
  struct Stored {
    let first: UInt64
    let second: UInt64
  }

  let label: String
  /// The number of the ring in its recording: its track.
  let number: Int
  /// The number of the recording that it belongs to.
  let recording: UInt32
  /// The ticks at the beginning of the recording.
  let start: UInt64
  private let slots: UnsafeMutablePointer<Atomic<UInt64>>
  private let mask: UInt64
  private let written = Atomic<UInt64>(0)

  static var bytesOfEvent: Int { 16 }

  /// Creates a ring of the largest power of two of events that `bytes` hold; returns nil without memory for it.
  init?(_ label: String, number: Int, bytes: Int, recording: UInt32, start: UInt64) {
    let wanted = max(64, bytes / Self.bytesOfEvent)
    let capacity = 1 << (Int.bitWidth - 1 - wanted.leadingZeroBitCount)
    // The pages of a large allocation have no memory before the first event is there.
    guard let memory = calloc(capacity, Self.bytesOfEvent) else { return nil }
    // Sound because an atomic word of zero is a word of zero.
    slots = memory.assumingMemoryBound(to: Atomic<UInt64>.self)
    mask = UInt64(capacity - 1)
    self.label = label
    self.number = number
    self.recording = recording
    self.start = start
  }

  deinit { free(slots) }

  var capacity: Int { Int(mask) + 1 }

  /// Adds an event; called by the writer.
  @inline(__always)
  func append(_ first: UInt64, _ second: UInt64) {
    let index = written.load(ordering: .relaxed)
    let slot = slots + 2 * Int(truncatingIfNeeded: index & mask)
    slot[0].store(first, ordering: .releasing)
    slot[1].store(second, ordering: .releasing)
    written.store(index &+ 1, ordering: .releasing)
  }

  /// The events that are in the ring, the oldest first; any thread.
  ///
  /// `betweenCopyAndCheck` is called between the steps 2 and 3, for tests.
  func events(_ betweenCopyAndCheck: () -> Void = {}) -> [Stored] {
    let count = written.load(ordering: .acquiring)
    let first = count > mask ? count - mask - 1 : 0
    var copied: [Stored] = []
    copied.reserveCapacity(Int(count - first))
    for index in first..<count {
      let slot = slots + 2 * Int(truncatingIfNeeded: index & mask)
      copied.append(
        Stored(first: slot[0].load(ordering: .acquiring), second: slot[1].load(ordering: .acquiring))
      )
    }
    betweenCopyAndCheck()
    let later = written.load(ordering: .acquiring)
    let firstWhole = later > mask ? later - mask : 0
    if firstWhole > first { copied.removeFirst(Int(min(firstWhole - first, UInt64(copied.count)))) }
    return copied
  }
}
