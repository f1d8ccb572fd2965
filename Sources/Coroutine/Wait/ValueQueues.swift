internal import CCoroutineRuntime
import Synchronization

// The queues that may hold many values, for reports: channels, and mailboxes of actors.
//
// A queue enters the table when it is made, with the place where that was, and leaves it in its deinit. A send and a
// receive do nothing for it. Small queues are not listed (`smallest`): a program makes many of them, one for each
// answer perhaps, and they cannot hold much. Nor are those of simulated worlds, where a reference that a report holds
// for a moment would change the run.
//
// Invariants
//  1. A queue that is in a table is in memory: its deinit waits for the table's lock. There a report retains it, unless
//     its deinit has begun.
//  2. What a report has retained is released under no lock: that may be the last reference.

/// A queue that holds values for receivers.
protocol ValueQueue: Inspectable {
  /// What it holds now; any thread. The caller holds no lock.
  var holding: QueueHolding { get }
}

/// What a queue of values holds at one moment.
struct QueueHolding {
  /// The number of values.
  var count = 0
  /// The number of values that it accepts before a send waits or drops one; `Int.max` if there is none.
  var limit = Int.max
  /// The number of values that have left it: the first value is the one with this number.
  var removed = 0
  /// The job that handles its values, if that is known: an actor's.
  var owner: AnyJob?
  /// The owner number of the coroutine that has waited for a value last; 0 if none has.
  var lastReceiver: UInt = 0
}

enum ValueQueues {
  /// The smallest limit of a queue that is listed.
  static var smallest: Int { 8 }

  struct Entry {
    fileprivate let object: Unmanaged<AnyObject>
    /// The place where it was made.
    let site: LaunchSite
    /// A number that no other queue of this process has.
    let number: UInt64
  }

  private final class Table: @unchecked Sendable {
    // Sound because the entries are accessed under the lock.
    let lock = ThreadLock()
    @exclusivity(unchecked) var entries: [UInt: Entry] = [:]
  }

  private static var tables: Int { 16 }
  private static let lastNumber = Atomic<UInt64>(0)

  private static let all = (0..<tables).map { _ in Table() }

  private static func key(of object: AnyObject) -> UInt {
    UInt(bitPattern: Unmanaged.passUnretained(object).toOpaque())
  }

  private static func table(of key: UInt) -> Table {
    all[Int((key >> 4 ^ key >> 10) % UInt(tables))]
  }

  /// Lists a queue; returns false if it is not listed, and has nothing to do at its end.
  static func add(_ queue: some ValueQueue, limit: Int, _ site: LaunchSite) -> Bool {
    if limit < smallest || cco_has_worlds() && isInWorld { return false }
    let key = key(of: queue)
    let entry = Entry(
      object: .passUnretained(queue),
      site: site,
      number: lastNumber.wrappingAdd(1, ordering: .relaxed).newValue
    )
    let table = table(of: key)
    table.lock.withLock { table.entries[key] = entry }
    return true
  }

  /// Called by the deinit of a listed queue, before its parts end.
  static func remove(_ queue: AnyObject) {
    let key = key(of: queue)
    let table = table(of: key)
    table.lock.withLock { _ = table.entries.removeValue(forKey: key) }
  }

  /// The listed queues, retained, in no order.
  ///
  /// Any thread. Releasing them may run the deinit of a queue on the calling thread.
  static func list() -> [(queue: any ValueQueue, entry: Entry)] {
    var listed: [(queue: any ValueQueue, entry: Entry)] = []
    for index in 0..<tables {
      let table = all[index]
      let held: [(AnyObject, Entry)] = table.lock.withLock {
        // In any order: readers sort them.
        table.entries.values.compactMap { entry in
          cco_try_retain(entry.object.toOpaque()) ? (entry.object.takeRetainedValue(), entry) : nil
        }
      }
      for (object, entry) in held { if let queue = object as? any ValueQueue { listed.append((queue, entry)) } }
    }
    return listed
  }

  private static var isInWorld: Bool {
    Carrier.current?.callerScheduler?._withUnsafeGuaranteedRef { $0.host.controlsOrder } ?? false
  }
}

extension JobNames {
  /// The coroutine with this owner number: its title, and what has become of it if it has ended.
  func lastReceiver(_ number: UInt) -> String? {
    let number = number & ~OwnerNumber.mayStep
    guard number != 0 else { return nil }
    if number == OwnerNumber.ofTask { return "last receiver a Task" }
    guard case .job(let id) = OwnerNumber.kind(of: number) else { return "last receiver \(owner(number))" }
    if let live = live(UInt64(id)) { return "last receiver \(Self.title(of: live))" }
    guard let ended = EndedJobs.find(UInt64(id)) else { return "last receiver #\(id)" }
    let name = ended.name.map { " \"\(String(cString: $0.cString))\"" } ?? ""
    return "last receiver #\(id)\(name), \(ended.clause)"
  }
}
