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
    "#\(job.id)" + (job.jobName.map { " \"\(String(cString: $0.cString))\"" } ?? "")
  }

  /// The name of the owner with this number.
  func owner(_ number: UInt) -> String {
    switch OwnerNumber.kind(of: number) {
    case .job(let id): job(withID: UInt64(id)).map(Self.title) ?? "#\(id)"
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

  private func job(withID id: UInt64) -> AnyJob? {
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
