#if Demo
import Foundation

/// Who logs in.
struct Account: Codable, Equatable, Sendable {
  var account: String
  var password: String
}

/// What a login gives.
struct Token: Codable, Equatable, Sendable {
  var token: String
}

/// What a site tells about an account.
struct Profile: Codable, Equatable, Sendable {
  var account: String
  var name: String
  var title: String
  /// An address, relative ones as seen from the site.
  var avatar: String
}
#endif
