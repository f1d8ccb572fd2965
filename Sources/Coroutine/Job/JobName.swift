/// A job's name, as given and as a C string, in one allocation: the characters lie behind the header.
///
/// Reports may hold it longer than the job lives.
// Sound because nothing changes after `make`.
final class JobName: ManagedBuffer<String, CChar>, @unchecked Sendable {
  static func make(_ text: String) -> JobName {
    let characters = text.utf8.contains(0) ? escaped(text) : text
    let count = characters.utf8.count
    let name = unsafeDowncast(create(minimumCapacity: count + 1) { _ in text }, to: JobName.self)
    name.withUnsafeMutablePointerToElements { elements in
      characters.withCString { elements.initialize(from: $0, count: count + 1) }
    }
    return name
  }

  /// The name as given.
  var text: String { header }

  /// The whole name as one C string, for dumps and reports; each NUL, which would end the string, is written as `\0`.
  ///
  /// Valid while the object lives, which does not move.
  var cString: UnsafePointer<CChar> { withUnsafeMutablePointerToElements { UnsafePointer($0) } }

  private static func escaped(_ text: String) -> String {
    text.split(separator: "\0", omittingEmptySubsequences: false).joined(separator: #"\0"#)
  }
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
