#if Demo
import Foundation

/// A feed that was asked for: where it is, and under which name the database keeps it.
struct Source: Equatable, Sendable {
  enum Place: Equatable, Sendable {
    case web(URL)
    case file(String)
    /// An argument that is neither; it fails like any other feed, beside the others.
    case nowhere
  }

  var place: Place
  /// The same from run to run.
  ///
  /// For the built-in server's feeds it is not the address, whose port changes.
  var name: String
  /// As it was written on the command line.
  var argument: String

  /// What an argument of the command line means.
  init(argument: String) {
    (self.argument, name) = (argument, argument)
    if let url = URL(string: argument), let scheme = url.scheme?.lowercased() {
      switch scheme {
      case "http", "https": place = (url.host() ?? "").isEmpty ? .nowhere : .web(url)
      case "file": place = .file(url.path(percentEncoded: false))
      default: place = argument.contains("://") ? .nowhere : .file(argument)
      }
    } else {
      place = .file(argument)
    }
    // Relative paths mean something else tomorrow, in another folder.
    if case .file(let path) = place {
      name = URL(filePath: path).standardizedFileURL.path(percentEncoded: false)
    }
  }

  init(name: String, url: URL) {
    (self.name, argument, place) = (name, name, .web(url))
  }
}
#endif
