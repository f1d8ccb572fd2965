public import CCoroutine
public import Synchronization

// The flows of control that step generators, coroutines and threads, and the numbers under which they own locks.

/// The part of a job that a generator's step uses; a thread outside any job has the same in its words (CCoroutine.h).
@usableFromInline
struct Flow: ~Copyable {
  @usableFromInline let owner: Atomic<UInt>
  @usableFromInline var locals: UnsafeMutableRawPointer?
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  // Sound because stored properties are laid out in the order of their declaration; AnyJob checks it.
  @inlinable var flow: UnsafeMutablePointer<Flow> {
    @inline(__always) get {
      withUnsafeMutablePointer(to: &pointee.frames) {
        UnsafeMutableRawPointer($0 + 1).assumingMemoryBound(to: Flow.self)
      }
    }
  }

  /// The number under which the job owns locks.
  @inline(__always) var ownerNumber: UInt { pointee.owner.load(ordering: .relaxed) & ~OwnerNumber.mayStep }
}

extension UnsafeMutablePointer where Pointee == cco_thread_words {
  // Sound because the structure in C declares the same two words.
  @inlinable var flow: UnsafeMutablePointer<Flow> {
    @inline(__always) get {
      withUnsafeMutablePointer(to: &pointee.owner) { UnsafeMutableRawPointer($0).assumingMemoryBound(to: Flow.self) }
    }
  }
}

/// The numbers under which coroutines and threads own locks.
///
/// None is used twice in a process: not after the end of its owner, and by no two kinds of owner. Zero is no owner.
@usableFromInline
enum OwnerNumber {
  /// A flag of the `owner` of a flow that has stepped a generator, no part of a number.
  @inlinable static var mayStep: UInt { 1 }
  private static var drawnFlag: UInt { 2 }

  private static let drawn = Atomic<UInt>(0)

  /// The number of the job with this identifier.
  static func ofJob(_ id: UInt64) -> UInt { UInt(id) << 2 }
  /// A number without an owner: for a thread, and for a job whose identifier another world uses as well.
  static func draw() -> UInt { drawn.wrappingAdd(1, ordering: .relaxed).newValue << 2 | drawnFlag }

  enum Kind {
    case job(UInt)
    case drawn
  }

  static func kind(of number: UInt) -> Kind {
    number & drawnFlag != 0 ? .drawn : .job(number >> 2)
  }

  /// The calling thread's number, with the flag.
  static var ofThread: UInt {
    let owner = cco_thread().pointee.owner
    return owner != 0 ? owner : drawForThread()
  }

  @inline(never)
  private static func drawForThread() -> UInt {
    let owner = draw()
    cco_thread().pointee.owner = owner
    return owner
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether the caller, which this job runs, is on the job's own stack and not on that of a body that the job steps.
  var isOnOwnStack: Bool {
    guard let context = pointee.context else { return false }
    let here = cco_frame()
    return here >= UnsafeMutableRawPointer(context.pointee.low) && here < UnsafeMutableRawPointer(context)
  }
}
