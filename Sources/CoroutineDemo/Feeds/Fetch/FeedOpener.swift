#if Demo
import Coroutine
import Foundation

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// What fetches from the web.
protocol FeedWeb: Sendable {
  /// Sends `request` and returns when the head of its answer is here, whatever its status is.
  ///
  /// Suspends the coroutine until then. Throws HTTPError where nobody answers.
  func open(_ request: URLRequest) throws -> HTTPStream
}

extension HTTPStreams: FeedWeb {}

/// Opens feeds, wherever they are.
struct FeedOpener: Sendable {
  let web: any FeedWeb
  /// For a site that cannot be reached, or is too busy: to ask for a feed changes nothing there, so it may be repeated.
  var retry = Retry(attempts: 3, pauses: .exponential(from: .milliseconds(200), limit: .seconds(2)))

  /// Suspends until there is something to read.
  ///
  /// nil: the site still has the version that `known` is about.
  func open(_ source: Source, known: Validators) throws -> FeedDocument? {
    switch source.place {
    case .web(let url): try fetch(url, known)
    case .file(let path): try openFile(path, named: source.name)
    case .nowhere: throw FeedFailure.notAnAddress(source.argument)
    }
  }

  private func fetch(_ url: URL, _ known: Validators) throws -> FeedDocument? {
    var request = URLRequest(url: url)
    request.setValue("CoroutineDemo", forHTTPHeaderField: "User-Agent")
    request.setValue(
      "application/atom+xml, application/rss+xml, application/xml, text/xml",
      forHTTPHeaderField: "Accept"
    )
    request.setValue(known.etag, forHTTPHeaderField: "If-None-Match")
    request.setValue(known.modified, forHTTPHeaderField: "If-Modified-Since")
    guard let stream = try retry(while: Self.isTemporary, { try answer(to: request, from: url) }) else { return nil }
    let response = stream.response
    // The length is that of what is sent: compressed, it says nothing about what will be read.
    let isPacked = response.value(forHTTPHeaderField: "Content-Encoding") != nil
    return FeedDocument(
      bytes: stream.body,
      base: response.url,
      charset: response.textEncodingName,
      expectedBytes: isPacked ? nil : response.value(forHTTPHeaderField: "Content-Length").flatMap { Int($0) },
      validators: Validators(
        etag: response.value(forHTTPHeaderField: "ETag"),
        modified: response.value(forHTTPHeaderField: "Last-Modified")
      ),
      close: stream.close
    )
  }

  private func answer(to request: URLRequest, from url: URL) throws -> HTTPStream? {
    let stream = try web.open(request)
    let status = stream.response.statusCode
    guard status == 200 else {
      stream.close()
      if status == 304 { return nil }
      throw HTTPError.refused(url, status: status, message: "")
    }
    return stream
  }

  /// Whether the same request may succeed a little later.
  static func isTemporary(_ error: any Error) -> Bool {
    switch error as? HTTPError {
    case .unreachable: true
    case .refused(_, let status, _): [429, 502, 503, 504].contains(status)
    case .malformed, nil: false
    }
  }

  private func openFile(_ path: String, named name: String) throws -> FeedDocument {
    let file = try co_blocking { try FileBytes(path: path) }
    return FeedDocument(
      bytes: file,
      base: URL(filePath: name),
      expectedBytes: file.size,
      close: {}
    )
  }
}
#endif
