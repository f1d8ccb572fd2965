internal import CCoroutine
import Glibc
import Synchronization

// A dump inspects the objects that parked jobs wait for (channels, locks, promises, jobs). Each of those jobs may be
// woken, and release its object, at any moment. Waits and wake-ups pay nothing for this.
//
// A job's record contains the address of the object (`waitSource`), not a reference. The job's frame holds the object
// from before `beginWait` until after `endWait`. So the object lives as long as the job's `wait` word is WAITING with
// the same epoch.
//
//   dump                                          the thread that releases the object last
//   1 inspected = the object's address            a. the job's wait was claimed (compare-and-swap)
//   2 reads the word                              b. the job ran on, and its frame released the object
//   3 sees the same epoch, WAITING                c. the deinit waits while `inspected` is its own address
//   4 tries to retain the object                  d. the memory is freed
//   5 inspected = 0
//
// One dump at a time is between 1 and 5: `inspecting` is held there. So a deinit waits only for a dump of this very
// object.
//
// Why 4 touches live memory. If c reads `inspected` before 1, then a, which comes before c, comes before 3, and 3 sees
// another word: the dump does not touch the object. Otherwise c sees its own address and waits until 5. (1, 3 and c are
// sequentially consistent; a is a read-modify-write. On x86-64 a and 1 are full barriers; on aarch64 a releases and c,
// a load-acquire, stays behind it.)
//
// Why 4 may fail. The object may be in its deinit, stopped at c: then it cannot be retained, and the dump does not
// describe it. Between 1 and 5 nothing is released, no lock is taken and no foreign code runs, so a deinit never waits
// for long, and never for itself.
//
// After 5 the dump owns a reference. It may take the object's lock, and it releases the reference under no lock: if
// that is the last one, the deinit runs on the dump's thread.
//
// This file is in the kernel so that every deinit may call it. The texts of a dump are in Inspect and beside each type.

enum Inspection {
  /// The address of the object that a dump is about to retain; 0 if there is none.
  private static let inspected = Atomic<UInt>(0)
  /// Held from step 1 to step 5.
  private static let inspecting = SpinLock()

  /// The first statement of the deinit of every `Inspectable`: one load, unless a dump is about to retain this object.
  @inline(__always)
  static func letFinish(_ object: AnyObject) {
    let address = UInt(bitPattern: Unmanaged.passUnretained(object).toOpaque())
    if inspected.load(ordering: .sequentiallyConsistent) == address { wait(address) }
  }

  @inline(never)
  private static func wait(_ address: UInt) {
    // In a forked child no thread takes a dump; a dump that a thread of the parent was taking never ends here.
    while inspected.load(ordering: .sequentiallyConsistent) == address, cco_forked() == CCO_NOT_FORKED { sched_yield() }
  }

  /// Performs step 1.
  static func begin(_ address: UnsafeMutableRawPointer) {
    inspecting.lock()
    inspected.store(UInt(bitPattern: address), ordering: .sequentiallyConsistent)
  }

  /// Performs step 5.
  static func end() {
    cco_order_retains()
    inspected.store(0, ordering: .sequentiallyConsistent)
    inspecting.unlock()
  }

  /// Returns the object that `job` has waited for since `word`, retained; nil if it no longer waits.
  ///
  /// The caller holds the job. `address` was read from the record after `word`.
  static func source(of job: JobRef, _ word: UInt64, at address: UInt) -> (any Inspectable)? {
    guard let object = UnsafeMutableRawPointer(bitPattern: address) else { return nil }
    begin(object)
    let isHeld = job.pointee.wait.load(ordering: .sequentiallyConsistent) == word && cco_try_retain(object)
    end()
    guard isHeld else { return nil }
    return Unmanaged<AnyObject>.fromOpaque(object).takeRetainedValue() as? any Inspectable
  }
}
