// The smallest example of the README, word for word; scripts/lint compares the two.
import Coroutine
import Foundation
import FoundationNetworking

struct Profile: Codable, Sendable {
  var name: String
  var avatar: URL
}

/// The whole adapter for a callback API.
func get(_ url: URL) throws -> Data {
  var request: URLSessionTask?
  defer { request?.cancel() }  // ends a request that nobody waits for any more; does nothing to one that has ended
  return try co_suspend { done in
    request = URLSession.shared.dataTask(with: url) { data, _, error in done(data, error) }
    request?.resume()
  }
}

func login(_ site: URL) -> Job<Data> {
  co_launch(name: "login") {
    let token = String(decoding: try get(site.appending(path: "login")), as: UTF8.self)
    let profile = try JSONDecoder().decode(Profile.self, from: get(site.appending(path: "me/\(token)")))
    return try co_timeout(.seconds(5)) { try get(profile.avatar) }
  }
  .finally { print("done") }
}
