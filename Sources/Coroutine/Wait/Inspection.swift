internal import CCoroutineRuntime
import Glibc
import Synchronization

/// An object that jobs wait for, and that a dump can describe.
///
/// Its deinit calls `Inspection.letFinish(self)` first.
protocol Inspectable: AnyObject {
  /// The lock under which waits are claimed through the object's queues.
  var waitLock: UnsafePointer<SpinLock> { get }

  /// Describes the object and its state.
  ///
  /// The caller holds the object, and no lock.
  func inspect(_ names: JobNames) -> String

  /// The verb of a select's case for the object, with a preposition if it needs one: "send to".
  func verb(of queue: UInt?) -> String
}

/// An object that one coroutine, thread or body holds, and that only its owner gives up.
protocol Owned: Inspectable {
  /// The number of the owner (OwnerNumber); 0 if no owner is known.
  var ownerInDump: UInt { get }
}

/// The names of the jobs of a dump.
///
/// A name is made when it is asked for: most jobs of a dump own nothing, and no job waits for them.
struct JobNames {
  /// In the order of their numbers.
  private let jobs: [AnyJob]
  /// The jobs whose numbers as owners do not follow from their identifiers: those of worlds.
  private var drawn: [UInt: AnyJob] = [:]

  /// The names of no jobs.
  init() { jobs = [] }

  init(_ jobs: [AnyJob]) {
    self.jobs = jobs
    for job in jobs {
      let number = job.record.ownerNumber
      if case .drawn = OwnerNumber.kind(of: number) { drawn[number] = job }
    }
  }

  var isEmpty: Bool { jobs.isEmpty }

  /// The number, and the name if there is one: `#7 "name"`.
  static func title(of job: AnyJob) -> String {
    "#\(job.id)" + (job.nameForReports.map { " \"\(String(cString: $0.cString))\"" } ?? "")
  }

  /// The name of the owner with this number.
  func owner(_ number: UInt) -> String {
    switch OwnerNumber.kind(of: number) {
    case .job(let id): live(UInt64(id)).map(Self.title) ?? "#\(id)"
    case .drawn: drawn[number].map(Self.title) ?? "a thread"
    }
  }

  /// The number of the coroutine that is the owner with this number, if it is one.
  func id(ofOwner number: UInt) -> UInt64? {
    switch OwnerNumber.kind(of: number) {
    case .job(let id): id == 0 ? nil : UInt64(id)
    case .drawn: drawn[number]?.id
    }
  }

  func job(_ job: AnyJob) -> String { isEmpty ? "#\(job.id)" : Self.title(of: job) }

  /// The live job with this number.
  func live(_ id: UInt64) -> AnyJob? {
    var (low, high) = (0, jobs.count)
    while low < high {
      let middle = (low + high) / 2
      if jobs[middle].id < id { low = middle + 1 } else { high = middle }
    }
    return low < jobs.count && jobs[low].id == id ? jobs[low] : nil
  }
}

extension Inspectable {
  /// The type, the name if it has one, and the address: two lines with the same address are about the same object.
  var identity: String { identity(as: asWord(type(of: self))) }

  /// The same with another text for the type.
  func identity(as type: String) -> String {
    let name = ObjectNames.name(of: self).map { "\"\($0.asName)\" " } ?? ""
    return "\(type) \(name)0x" + String(UInt(bitPattern: Unmanaged.passUnretained(self).toOpaque()), radix: 16)
  }
}

// MARK: - Objects that finish while they are read

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
    var wait = ShortWait()
    while inspected.load(ordering: .sequentiallyConsistent) == address, cco_forked() == CCO_NOT_FORKED { wait.pause() }
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

// MARK: - Names of objects

// The names that programs give to channels, locks, limiters and promises, for dumps.
//
// A table by address, so that an object without a name pays one byte. An object that has one is marked, and its deinit
// removes the name: until then no other object can have the address.

enum ObjectNames {
  // Not shared: only dumps read it.
  private static let lock = ThreadLock()
  // Sound because it is accessed under `lock`.
  nonisolated(unsafe) private static var names: [UInt: String] = [:]

  private static func address(of object: AnyObject) -> UInt {
    UInt(bitPattern: Unmanaged.passUnretained(object).toOpaque())
  }

  /// Gives an object a name, in place of the one that it had.
  static func set(_ name: String, of object: AnyObject) {
    lock.lock()
    let old = names.updateValue(name, forKey: address(of: object))
    lock.unlock()
    // Not released under the lock.
    withExtendedLifetime(old) {}
  }

  static func name(of object: AnyObject) -> String? { lock.withLock { names[address(of: object)] } }

  /// Called by the deinit of a marked object.
  static func remove(_ object: AnyObject) {
    lock.lock()
    let old = names.removeValue(forKey: address(of: object))
    lock.unlock()
    withExtendedLifetime(old) {}
  }
}

// MARK: - Who can end a wait

// Which coroutines can end a wait. The search for deadlocks (Inspect/Deadlocks.swift) asks for it, and nothing else.

/// A source that only known coroutines make ready, such as a lock that is held.
protocol OwnedSource: Inspectable {
  /// The numbers (OwnerNumber) of those of which one has to act before the wait of `job` can end; nil if others can end
  /// it as well, or if that is not known now.
  ///
  /// A cancellation, and a timer of the waiting coroutine, do not count. The caller holds the object and `job`, and no
  /// lock.
  func owners(awaitedBy job: JobRef) -> [UInt]?
}

/// A scope, as its children know it.
protocol EnclosingScope: AnyObject {
  /// The job that ends after the children; nil after the scope's end. Any thread.
  var joiner: AnyJob? { get }
  /// Whether a timer will cancel the children. Any thread.
  var isAboutToCancel: Bool { get }
}

/// The callback of a child's end that its scope has added.
protocol ScopeEntry: AnyObject {
  var enclosing: any EnclosingScope { get }
}

extension AnyJob {
  /// The scope that the job was launched in, if it has not ended.
  ///
  /// Any thread; the caller holds the job. The first callback of a child is that of its scope.
  final var enclosingAny: (any EnclosingScope)? {
    // Known: no other use changes the answer.
    completion.known.lock.withLock {
      let waiter = completion.pointee.waiters.first { $0.pointee.callbackIfAny is any ScopeEntry }
      return (waiter?.pointee.callbackIfAny as? any ScopeEntry)?.enclosing
    }
  }
}

extension AnyJob: OwnedSource {
  func owners(awaitedBy job: JobRef) -> [UInt]? { [record.ownerNumber] }
}
