#if Demo
import GRDB

/// Why the database cannot be used: a sentence that names it and says what to do.
struct StoreFailure: Error, Equatable, CustomStringConvertible {
  enum Kind: Equatable, Sendable {
    case cannotOpen
    case readOnly
    case locked
    case full
    case notADatabase
    case other(String)
  }

  var path: String
  var kind: Kind

  init(path: String, kind: Kind) {
    (self.path, self.kind) = (path, kind)
  }

  init(path: String, _ error: any Error) {
    self.path = path
    guard let error = error as? DatabaseError else {
      kind = .other("\(error)")
      return
    }
    switch error.resultCode {
    case .SQLITE_CANTOPEN: kind = .cannotOpen
    case .SQLITE_READONLY, .SQLITE_PERM, .SQLITE_AUTH: kind = .readOnly
    case .SQLITE_BUSY, .SQLITE_LOCKED: kind = .locked
    case .SQLITE_FULL: kind = .full
    case .SQLITE_NOTADB, .SQLITE_CORRUPT: kind = .notADatabase
    default: kind = .other(error.message ?? error.resultCode.description)
    }
  }

  var description: String {
    switch kind {
    case .cannotOpen:
      "the database \(path) cannot be opened; give another place with --database, in a folder that exists"
    case .readOnly: "the database \(path) may not be written; give another place with --database"
    case .locked: "the database \(path) is locked by another program; try again when that has ended"
    case .full: "there is no room for the database \(path); make some, or give another place with --database"
    case .notADatabase: "\(path) is no database, or a damaged one; give another place with --database"
    case .other(let reason): "the database \(path) failed: \(reason)"
    }
  }
}
#endif
