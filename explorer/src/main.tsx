import { options, render, type ComponentChild } from "preact";
import { useEffect } from "preact/hooks";
import * as agent from "./agent";
import * as app from "./app";
import { Conversation } from "./conversation";
import { afterFrame } from "./frames";
import { Header } from "./header";
import { Inspector } from "./inspector";
import { finishSignIn } from "./oauth";
import { Dialogs, onKey } from "./palette";
import { Sidebar } from "./sidebar";

options.debounceRendering = afterFrame; // all changes of a frame are rendered together

function App(): ComponentChild {
  useEffect(() => {
    window.addEventListener("hashchange", app.applyAddress);
    window.addEventListener("keydown", onKey);
    app.applyAddress();
    void agent.watchAgent();
  }, []);
  return (
    <>
      <a class="skip" href="#talk" onClick={(event) => { event.preventDefault(); document.querySelector<HTMLElement>(".talk")?.focus(); }}>
        To the conversation
      </a>
      <Header />
      <div class="panes">
        <Sidebar />
        <Conversation />
        <Inspector />
      </div>
      <Switcher />
      <Dialogs />
    </>
  );
}

/** The selector of the pane, where there is room for only one. */
function Switcher(): ComponentChild {
  const panes: [app.Pane, string][] = [
    ["left", "Skills"],
    ["centre", "Conversation"],
    ["right", "Inspect"],
  ];
  return (
    <div class="switcher" role="group" aria-label="Panes">
      {panes.map(([name, title]) => (
        <button type="button" aria-pressed={app.pane.value === name} onClick={() => void (app.pane.value = name)}>
          {title}
        </button>
      ))}
    </div>
  );
}

// After a sign-in at an issuer, this page is only the way back to the one that began it.
if (!finishSignIn()) {
  const holder = document.getElementById("app")!;
  holder.textContent = "";
  render(<App />, holder);
}
