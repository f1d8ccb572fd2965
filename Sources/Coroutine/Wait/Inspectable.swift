import Synchronization

/// An object that jobs wait for, and that a dump can describe.
///
/// Its deinit calls `Inspection.letFinish(self)` first.
protocol Inspectable: AnyObject {
  /// The lock under which waits are claimed through the object's queues.
  var waitLock: UnsafePointer<SpinLock> { get }

  /// What it is, and how it stands.
  ///
  /// The caller holds the object, and no lock.
  func inspect(_ names: JobNames) -> String

  /// What a select's case does with it, as a verb and maybe a preposition: "send to".
  func verb(of queue: UInt?) -> String
}

/// The names of the jobs of a dump, by the addresses of their records.
struct JobNames {
  private var names: [UInt: String] = [:]

  mutating func add(_ name: String, of job: JobRef) { names[UInt(bitPattern: job)] = name }

  /// Of the job whose completion lies at `address`.
  func awaited(_ address: UInt) -> String? { names[address &- UInt(MemoryLayout<JobRecord>.stride)] }

  func owner(_ word: UInt) -> String { names[word] ?? "a thread" }
  func job(_ job: AnyJob) -> String { names[UInt(bitPattern: job.record)] ?? "#\(job.id)" }
}

extension Inspectable {
  /// Its type and address: two lines with the same address are about the same object.
  var identity: String {
    "\(type(of: self)) 0x" + String(UInt(bitPattern: Unmanaged.passUnretained(self).toOpaque()), radix: 16)
  }
}
