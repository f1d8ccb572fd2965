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

/// The names of the jobs of a dump, by the addresses of their records.
struct JobNames {
  private var names: [UInt: String] = [:]
  /// By the numbers under which the jobs own locks.
  private var owners: [UInt: String] = [:]

  mutating func add(_ name: String, of job: JobRef) {
    names[UInt(bitPattern: job)] = name
    owners[job.ownerNumber] = name
  }

  /// The name of the job whose completion is at `address`.
  func awaited(_ address: UInt) -> String? { names[address &- UInt(MemoryLayout<JobRecord>.stride)] }

  /// The name of the owner with this number.
  func owner(_ number: UInt) -> String {
    switch OwnerNumber.kind(of: number) {
    case .body: "a generator's body"
    case .job(let id): owners[number] ?? "#\(id)"
    case .drawn: owners[number] ?? "a thread"
    }
  }

  func job(_ job: AnyJob) -> String { names[UInt(bitPattern: job.record)] ?? "#\(job.id)" }
}

extension Inspectable {
  /// The type and address: two lines with the same address are about the same object.
  var identity: String {
    "\(asWord(type(of: self))) 0x" + String(UInt(bitPattern: Unmanaged.passUnretained(self).toOpaque()), radix: 16)
  }
}
