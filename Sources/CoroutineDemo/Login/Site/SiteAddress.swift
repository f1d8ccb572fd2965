#if Demo
import ArgumentParser
import Foundation

/// Which addresses the login accepts: http or https, with a host.
enum SiteAddress {
  static func isUsable(_ url: URL) -> Bool {
    ["http", "https"].contains(url.scheme?.lowercased() ?? "") && !(url.host() ?? "").isEmpty
  }

  /// The address that an argument means; the trailing slash makes relative addresses start below it.
  static func parse(_ text: String) throws -> URL {
    guard let url = URL(string: text), isUsable(url), url.query() == nil, url.fragment() == nil,
      url.port.map({ (1...65_535).contains($0) }) ?? true
    else {
      throw ValidationError("'\(text)' is no site's address: write one like http://127.0.0.1:8080")
    }
    return url.path().hasSuffix("/") ? url : url.appending(path: "/")
  }
}
#endif
