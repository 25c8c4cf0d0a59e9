// Requests to the server, with JSON in both directions.

class HttpError extends Error {
  constructor(status, problem) {
    super(problem);
    this.status = status;
  }
}

async function checkStatus(response) {
  if (response.ok) return response;
  const text = await response.text();
  let problem = text;
  try {
    problem = JSON.parse(text).problem ?? text;
  } catch {
    // The text is not JSON: show it as it is.
  }
  throw new HttpError(response.status, problem || `the server answered with status ${response.status}`);
}

export async function getJson(path, options = {}) {
  return (await checkStatus(await fetch(path, options))).json();
}

function jsonRequest(content, signal) {
  const headers = { "Content-Type": "application/json" };
  return { method: "POST", headers, body: JSON.stringify(content), signal };
}

export function postJson(path, content, signal) {
  return getJson(path, jsonRequest(content, signal));
}

// Yields the objects of a response of JSON lines, as they arrive.
export async function* postLines(path, content, signal) {
  const response = await checkStatus(await fetch(path, jsonRequest(content, signal)));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n");
    rest = whole.pop();
    for (const line of whole) yield JSON.parse(line);
  }
}

// Returns a function that runs `work` once it has not been called for a while, and cancels the run before.
export function debounce(milliseconds, work) {
  let timer = 0;
  let current = new AbortController();
  return (...given) => {
    clearTimeout(timer);
    current.abort();
    current = new AbortController();
    const { signal } = current;
    timer = setTimeout(async () => {
      try {
        await work(signal, ...given);
      } catch (error) {
        if (error.name !== "AbortError") throw error;
      }
    }, milliseconds);
  };
}
