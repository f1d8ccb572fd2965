#if Demo
import Coroutine
import Foundation

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// A site that one can log in to: three requests, each a step of the login.
///
///     POST login         {"account", "password"}    → {"token"}
///     GET  me            Authorization: Bearer …    → {"account", "name", "title", "avatar"}
///     GET  <avatar>                                 → a PNG
struct Site: Sendable {
  let url: URL
  let client: HTTPSession

  /// Suspends until the site has answered.
  func logIn(_ account: Account) throws -> Token {
    let request = try loginRequest(account)
    return try Self.decode(client.send(request), from: request)
  }

  /// Suspends until the site has answered.
  func profile(_ token: Token) throws -> Profile {
    let request = profileRequest(token)
    return try Self.decode(client.send(request), from: request)
  }

  /// Suspends until the file is here.
  func avatar(_ profile: Profile) throws -> Data {
    try client.send(avatarRequest(profile))
  }
}

// MARK: - The same with callbacks

extension Site {
  func logIn(
    _ account: Account,
    _ done: @escaping @Sendable (Result<Token, any Error>) -> Void
  ) -> URLSessionTask? {
    send({ try loginRequest(account) }, Self.decode, done)
  }

  func profile(
    _ token: Token,
    _ done: @escaping @Sendable (Result<Profile, any Error>) -> Void
  ) -> URLSessionTask? {
    send({ profileRequest(token) }, Self.decode, done)
  }

  func avatar(
    _ profile: Profile,
    _ done: @escaping @Sendable (Result<Data, any Error>) -> Void
  ) -> URLSessionTask? {
    send({ try avatarRequest(profile) }, { data, _ in data }, done)
  }

  private func send<Output>(
    _ make: () throws -> URLRequest,
    _ decode: @escaping @Sendable (Data, URLRequest) throws -> Output,
    _ done: @escaping @Sendable (Result<Output, any Error>) -> Void
  ) -> URLSessionTask? {
    do {
      let request = try make()
      return client.send(request) { result in
        done(Result { try decode(result.get(), request) })
      }
    } catch {
      done(.failure(error))
      return nil
    }
  }
}

// MARK: - Requests and answers

extension Site {
  private func loginRequest(_ account: Account) throws -> URLRequest {
    var request = URLRequest(url: url.appending(path: "login"))
    request.httpMethod = "POST"
    request.setValue("application/json", forHTTPHeaderField: "Content-Type")
    request.httpBody = try JSONEncoder().encode(account)
    return request
  }

  private func profileRequest(_ token: Token) -> URLRequest {
    var request = URLRequest(url: url.appending(path: "me"))
    request.setValue("Bearer \(token.token)", forHTTPHeaderField: "Authorization")
    return request
  }

  private func avatarRequest(_ profile: Profile) throws -> URLRequest {
    guard let address = URL(string: profile.avatar, relativeTo: url)?.absoluteURL, SiteAddress.isUsable(address) else {
      throw HTTPError.malformed(url.appending(path: "me"), what: "the avatar's address is '\(profile.avatar)'")
    }
    return URLRequest(url: address)
  }

  @Sendable
  private static func decode<Output: Decodable>(_ data: Data, from request: URLRequest) throws -> Output {
    do {
      return try JSONDecoder().decode(Output.self, from: data)
    } catch {
      guard let url = request.url else { preconditionFailure("requests are made from addresses") }
      throw HTTPError.malformed(url, what: "the JSON of \(Output.self) was expected")
    }
  }
}
#endif
