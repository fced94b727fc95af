// Elements out of names and text. Whatever comes from data becomes a text node or an attribute value,
// never markup: there is no place here where a string is parsed as HTML.

import { fullOf, momentOf, msOf } from "/page/words.js";

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== false && each !== ""));
  return element;
}

export const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

// A time, short; the whole of it, with its zone, is its title.
export const moment = (ms) => el("time", { datetime: new Date(ms).toISOString(), title: fullOf(ms) }, momentOf(ms));
export const tsMoment = (ts) => (BigInt(ts ?? 0) > 0n ? moment(msOf(ts)) : "–");

// Puts children in place of what was there, unless they are made of the same facts as the last time:
// what has the focus or is selected stays.
const known = new WeakMap();
export function show(place, facts, make) {
  const text = JSON.stringify(facts);
  if (known.get(place) === text) return;
  known.set(place, text);
  place.replaceChildren(...[make()].flat().filter(Boolean));
}
