import Glibc

/// A job's name, as given and as a C string.
///
/// Reports may hold it longer than the job lives.
final class JobName: Sendable {
  /// The name as given.
  let text: String
  /// The whole name as one C string, for dumps and reports; each NUL, which would end the string, is written as `\0`.
  // Sound because it never changes, and is released with this object.
  nonisolated(unsafe) let cString: UnsafePointer<CChar>

  init(_ text: String) {
    self.text = text
    cString = UnsafePointer(strdup(text.utf8.contains(0) ? Self.escaped(text) : text))
  }

  deinit { free(UnsafeMutablePointer(mutating: cString)) }

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
