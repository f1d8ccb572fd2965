import CCoroutine
import Glibc
import Synchronization

@testable import Coroutine

/// Lets a call that reads no byte have this memory.
///
/// An optimiser does not know that. Without it, it would see that a frame is not changed, and need no frame.
func lendToSystem(_ memory: UnsafeMutableRawPointer) { _ = read(-1, memory, 0) }

/// Goes at least `levels` frames of 1 KiB deep, each filled with numbers of its own, calls `body` at the end, and
/// returns whether every frame was the same afterwards.
@inline(never)
func goDeep(_ levels: Int, _ mark: UInt64, _ body: () throws -> Void) rethrows -> Bool {
  var frame = InlineArray<128, UInt64>(repeating: 0)
  for index in frame.indices { frame[index] = mark &+ UInt64(levels * frame.count + index) }
  if levels > 1 {
    guard try goDeep(levels - 1, mark, body) else { return false }
  } else {
    try body()
  }
  withUnsafeMutablePointer(to: &frame) { lendToSystem($0) }
  for index in frame.indices where frame[index] != mark &+ UInt64(levels * frame.count + index) { return false }
  return true
}

func goDeep(_ levels: Int, _ mark: UInt64 = 1) -> Bool { goDeep(levels, mark) {} }

/// The stack of a coroutine that is parked and stays so.
struct ParkedStack {
  static let page = UInt(sysconf(Int32(_SC_PAGESIZE)))

  /// The pages that have memory: below the one with the saved stack pointer, and from it on.
  let dead: Int
  let live: Int
  /// The number of pages from that one to the control block's.
  let used: Int

  init(of job: AnyJob) {
    guard let context = job.record.pointee.context else { preconditionFailure("the job has no stack") }
    let low = UInt(bitPattern: context.pointee.low)
    let pointer = UInt(bitPattern: context.pointee.parked.stack) / Self.page * Self.page
    let end = (UInt(bitPattern: context) / Self.page + 1) * Self.page
    dead = Self.resident(low, pointer)
    live = Self.resident(pointer, end)
    used = Int((end - pointer) / Self.page)
  }

  private static func resident(_ low: UInt, _ end: UInt) -> Int {
    var pages = [UInt8](repeating: 0, count: Int((end - low) / page))
    guard mincore(UnsafeMutableRawPointer(bitPattern: low), Int(end - low), &pages) == 0 else { return -1 }
    return pages.count { $0 & 1 == 1 }
  }
}

extension AnyJob {
  /// Whether the coroutine waits, and has left its stack.
  var isParked: Bool {
    guard record.pointee.wait.load(ordering: .acquiring) & 0xFF == 1, let context = record.pointee.context else {
      return false
    }
    return cco_is_parked(&context.pointee.parked)
  }
}
