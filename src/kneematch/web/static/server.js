// Talking to the server: JSON there and back, and its complaints.

export class Refused extends Error {
  constructor(status, problem) {
    super(problem);
    this.status = status;
  }
}

// The address bar, and with it the history, need not keep the token: the cookie does.
history.replaceState(null, "", location.pathname);

async function answered(response) {
  if (response.ok) return response;
  const text = await response.text();
  let problem = text;
  try {
    problem = JSON.parse(text).problem ?? text;
  } catch {
    // Plain text is the reason itself.
  }
  throw new Refused(response.status, problem || `the server answered ${response.status}`);
}

export async function ask(path, options = {}) {
  return (await answered(await fetch(path, options))).json();
}

function posted(content, signal) {
  const headers = { "Content-Type": "application/json" };
  return { method: "POST", headers, body: JSON.stringify(content), signal };
}

export function send(path, content, signal) {
  return ask(path, posted(content, signal));
}

// Yields the objects of an answer that comes line by line.
export async function* lines(path, content, signal) {
  const response = await answered(await fetch(path, posted(content, signal)));
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

// Calls a function once things have been calm for a moment; only the last answer counts.
export function calmly(milliseconds, work) {
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
