import Glibc

/// A job's name, as it was given and as C gets it.
///
/// Reports may hold it longer than the job lives.
final class JobName: Sendable {
  /// As it was given.
  let text: String
  /// The whole name as one C string, for dumps and reports: each NUL, which would end it, is written `\0`.
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

/// Who a job is or was: what is left to say of it when it may have gone.
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
