#if Demo
import FlyingFox
import Foundation

/// What the built-in server answers.
///
/// The routes are described where the client is: Site.swift.
struct LoginRoutes: Sendable {
  static let avatarSide = 160
  private let misbehaviour: Misbehaviour
  private let sessions = Locked<[String: Member]>([:])

  init(_ misbehaviour: Misbehaviour) {
    self.misbehaviour = misbehaviour
  }

  func add(to server: HTTPServer) async {
    await server.appendRoute("POST /login") { try await answer(.login, $0, logIn) }
    await server.appendRoute("GET /me") { try await answer(.profile, $0, profile) }
    await server.appendRoute("GET /avatars/:account") { try await answer(.avatar, $0, avatar) }
  }

  private func answer(
    _ step: Misbehaviour.Fault,
    _ request: HTTPRequest,
    _ route: (HTTPRequest) async throws -> HTTPResponse
  ) async throws -> HTTPResponse {
    try await Task.sleep(for: misbehaviour.latency)
    guard misbehaviour.fault != step else {
      return Self.text(.serviceUnavailable, "out of order, as --fail-at \(step.rawValue) asks for")
    }
    return try await route(request)
  }

  private func logIn(_ request: HTTPRequest) async throws -> HTTPResponse {
    guard let account = try? await JSONDecoder().decode(Account.self, from: request.bodyData) else {
      return Self.text(.badRequest, "an account and a password are expected, as JSON")
    }
    // One sentence for both, so that nobody learns which accounts exist.
    guard let member = Member.named(account.account), member.account.password == account.password else {
      return Self.text(.unauthorized, "wrong account or password")
    }
    let token = UUID().uuidString
    sessions.withLock { $0[token] = member }
    return try Self.json(Token(token: token))
  }

  private func profile(_ request: HTTPRequest) throws -> HTTPResponse {
    let token = request.headers[.authorization]?.split(separator: " ").last.map(String.init) ?? ""
    guard let member = sessions.withLock({ $0[token] }) else {
      return Self.text(.unauthorized, "log in first")
    }
    let account = member.account.account
    return try Self.json(
      Profile(account: account, name: member.name, title: member.title, avatar: "avatars/\(account).png")
    )
  }

  private func avatar(_ request: HTTPRequest) throws -> HTTPResponse {
    let file = request.routeParameters["account"] ?? ""
    guard file.hasSuffix(".png"), let member = Member.named(String(file.dropLast(4))) else {
      return Self.text(.notFound, "nobody here looks like that")
    }
    let png = try member.portrait.image(side: Self.avatarSide).pngData()
    let sent = misbehaviour.fault == .effect ? png.prefix(png.count / 2) : png
    return HTTPResponse(statusCode: .ok, headers: [.contentType: "image/png"], body: sent)
  }

  private static func json(_ value: some Encodable) throws -> HTTPResponse {
    HTTPResponse(
      statusCode: .ok,
      headers: [.contentType: "application/json"],
      body: try JSONEncoder().encode(value)
    )
  }

  private static func text(_ status: HTTPStatusCode, _ sentence: String) -> HTTPResponse {
    HTTPResponse(statusCode: status, headers: [.contentType: "text/plain; charset=utf-8"], body: Data(sentence.utf8))
  }
}
#endif
