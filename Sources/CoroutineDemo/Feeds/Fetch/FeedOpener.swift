#if Demo
import Coroutine
import Foundation

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// Opens feeds, wherever they are.
struct FeedOpener: Sendable {
  let web: HTTPStreams

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
    let stream = try web.open(request)
    let response = stream.response
    guard response.statusCode == 200 else {
      stream.close()
      if response.statusCode == 304 { return nil }
      throw HTTPError.refused(url, status: response.statusCode, message: "")
    }
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
