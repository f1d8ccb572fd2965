/// A job's name, as given and as reports show it, in one allocation: the characters for reports lie behind the text.
///
/// Reports may hold it longer than the job lives.
struct JobName: @unchecked Sendable {
  // Sound because nothing changes after `init`.
  private final class Storage: ManagedBuffer<String, CChar> {}
  private let storage: Storage

  /// Returns the name that a coroutine of the caller's scheduler has given last if it has this text, else a new one.
  ///
  /// So the connections of a server share one name for each worker, which saves each of them an allocation.
  static func shared(_ text: String) -> JobName {
    guard let carrier = Carrier.current, carrier.pointee.job != nil,
      let scheduler = carrier.pointee.scheduler?.takeUnretainedValue()
    else {
      return JobName(text)
    }
    // Not `==`, for which different characters may be equal.
    if let latest = scheduler.latestName, latest.text.utf8.elementsEqual(text.utf8) { return latest }
    let made = JobName(text)
    scheduler.latestName = made
    return made
  }

  init(_ text: String) {
    let characters = text.asName
    let count = characters.utf8.count + 1
    storage = unsafeDowncast(Storage.create(minimumCapacity: count) { _ in text }, to: Storage.self)
    storage.withUnsafeMutablePointerToElements { elements in
      characters.withCString { elements.initialize(from: $0, count: count) }
    }
    if Self.storage(at: cString).toOpaque() != Unmanaged.passUnretained(storage).toOpaque() {
      misuse("a name does not lie where its characters say")
    }
  }

  /// The name whose characters for reports are at an address that `retained` has returned.
  init(at characters: UnsafePointer<CChar>) { storage = Self.storage(at: characters).takeUnretainedValue() }

  /// The characters for reports, with a reference that `release(at:)` gives up.
  func retained() -> UnsafePointer<CChar> {
    _ = Unmanaged.passRetained(storage)
    return cString
  }

  static func release(at characters: UnsafePointer<CChar>) { storage(at: characters).release() }

  // Sound because the characters lie at the same distance in each storage; `init` checks it.
  private static func storage(at characters: UnsafePointer<CChar>) -> Unmanaged<Storage> {
    object(holding: UnsafeRawPointer(characters), at: MemoryLayout<String>.size)
  }

  /// The name as given.
  var text: String { storage.header }

  /// The name as a C string, for dumps and reports: escaped, and at most 200 bytes (`String.asName`).
  ///
  /// Valid while any copy of this name lives: its storage does not move.
  var cString: UnsafePointer<CChar> { storage.withUnsafeMutablePointerToElements { UnsafePointer($0) } }
}

/// The identity of a job, which remains usable after the job has gone.
@usableFromInline
struct JobOrigin: Sendable {
  let id: UInt64
  let launchSite: LaunchSite
  let name: JobName?

  /// `"name" (id 7, launched at Module/File.swift:12)`.
  var summary: String {
    let name = name.map { "\"\(String(cString: $0.cString))\" " } ?? ""
    return "\(name)(id \(id), launched at \(launchSite.description))"
  }
}

extension JobOrigin {
  @usableFromInline init(of job: JobRef) { self = job.handle._withUnsafeGuaranteedRef { $0.origin } }
}
