#if Demo
import FlyingFox
import FlyingSocks
import Foundation

/// What the built-in server answers.
struct FeedRoutes: Sendable {
  /// How long the slow feed pauses after each piece.
  let pause: Duration
  let archive: ArchiveFeed

  init(pause: Duration = .milliseconds(60), archive: ArchiveFeed = ArchiveFeed()) {
    (self.pause, self.archive) = (pause, archive)
  }

  func add(to server: HTTPServer) async {
    for entry in Catalogue.all {
      await server.appendRoute(HTTPRoute("GET /\(entry.name)")) { try answer($0, entry) }
    }
    await server.appendRoute("GET /forecast/today.xml") { _ in Self.redirect(.found, "/forecast/now.xml") }
    await server.appendRoute("GET /forecast/now.xml") { _ in
      HTTPResponse(statusCode: .ok, headers: [.contentType: "text/xml"], body: try Catalogue.sample("weather.xml"))
    }
  }

  private func answer(_ request: HTTPRequest, _ entry: Catalogue.Entry) throws -> HTTPResponse {
    var headers: HTTPHeaders = [.contentType: entry.type]
    headers[HTTPHeader("ETag")] = entry.etag
    headers[HTTPHeader("Last-Modified")] = entry.modified
    if Self.has(request, entry) { return HTTPResponse(statusCode: .notModified, headers: headers) }
    switch entry.manner {
    case .plain:
      return HTTPResponse(statusCode: .ok, headers: headers, body: try Catalogue.sample(entry.name))
    case .packed:
      let sample = try Catalogue.sample(entry.name)
      guard request.headers[HTTPHeader("Accept-Encoding")]?.contains("gzip") == true else {
        return HTTPResponse(statusCode: .ok, headers: headers, body: sample)
      }
      headers[HTTPHeader("Content-Encoding")] = "gzip"
      return HTTPResponse(statusCode: .ok, headers: headers, body: try Gzip.packed(sample))
    case .slow:
      let sample = try Catalogue.sample(entry.name)
      let body = PacedBody(data: sample, piece: sample.count / 24 + 1, pause: pause)
      return HTTPResponse(statusCode: .ok, headers: headers, body: HTTPBodySequence(from: body, count: sample.count))
    case .closesMidway:
      let sample = try Catalogue.sample(entry.name)
      let body = PacedBody(data: sample, piece: 1_024, breaksOffAfter: sample.count / 2)
      return HTTPResponse(statusCode: .ok, headers: headers, body: HTTPBodySequence(from: body, count: sample.count))
    case .moved(let address):
      return Self.redirect(.movedPermanently, "/\(address)")
    case .missing:
      return HTTPResponse(statusCode: .notFound, headers: [.contentType: "text/html"], body: Data("<h1>Gone</h1>".utf8))
    case .archive:
      let body = HTTPBodySequence(from: archive, count: archive.byteCount, suggestedBufferSize: 65_536)
      return HTTPResponse(statusCode: .ok, headers: headers, body: body)
    }
  }

  /// Whether the client has this very version already.
  ///
  /// An ETag that is asked for decides alone, as HTTP has it.
  private static func has(_ request: HTTPRequest, _ entry: Catalogue.Entry) -> Bool {
    if let known = request.headers[HTTPHeader("If-None-Match")] { return known == entry.etag }
    if let known = request.headers[HTTPHeader("If-Modified-Since")] { return known == entry.modified }
    return false
  }

  private static func redirect(_ status: HTTPStatusCode, _ address: String) -> HTTPResponse {
    HTTPResponse(statusCode: status, headers: [.location: address])
  }
}
#endif
